"""The APIs' request and response types, codecs and translations: bytes to values, no I/O.

Reading order: `requests` and `tools` (what clients send), `parsing` (bytes to them, or a 400 that
names the field), `responses` and `chunks` (what they get), `sse`, `errors`. From a model's text to
an answer: `deltas`, `reasoning`, `call_scanner`, `tool_parsers`, `answer_parser`. Other APIs as
translations of a chat: `translation`, `chat_answers`, then each API's request and answer modules.
"""
