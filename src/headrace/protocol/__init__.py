"""OpenAI request and response types, the SSE codec and the error body: bytes to values, no I/O."""
