"""OpenAI request and response types, the SSE codec and the error body: bytes to values, no I/O.

Reading order: `requests` (what clients send), `parsing` (bytes to them, or a 400 that names the
field), `responses` and `chunks` (what they get), `sse`, `errors`.
"""
