"""Stream chunks as ready server-sent events; what never changes in a stream is encoded once.

Most chunks of a stream differ in the text alone, so a chunk costs one string escape and one join.
"""

from typing import Literal

import msgspec

from headrace.protocol.responses import ChatLogprobs, TextLogprobs, Usage

ChunkKind = Literal["chat", "text"]

_encode = msgspec.json.Encoder().encode
_objects: dict[ChunkKind, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}


class ChunkWriter:
    """Encodes the chunks of one stream: `opening`, any number of `text`, `finish`, `usage`."""

    def __init__(
        self, kind: ChunkKind, stream_id: str, created: int, model: str, *, usage_chunk: bool
    ) -> None:
        """With `usage_chunk` every other chunk says `"usage":null`, as OpenAI's API does."""
        self._kind = kind
        head = {"id": stream_id, "object": _objects[kind], "created": created, "model": model}
        self._head = b"data: " + _encode(head)[:-1]
        self._no_usage = b',"usage":null' if usage_chunk else b""
        content_key = b'"delta":{"content":' if kind == "chat" else b'"text":'
        self._before_text = self._head + b',"choices":[{"index":0,' + content_key
        self._after_key = b"}" if kind == "chat" else b""
        self._after_text = self._end_of_choice(None)

    def opening(self, usage: Usage | None = None) -> bytes:
        """The first chunk of a chat, which names the role; nothing for a text completion."""
        if self._kind == "text":
            return b""
        delta = b'"delta":{"role":"assistant","content":""}'
        return self._chunk(delta + b',"logprobs":null,"finish_reason":null', usage)

    def text(
        self,
        text: str,
        usage: Usage | None = None,
        logprobs: ChatLogprobs | TextLogprobs | None = None,
    ) -> bytes:
        """A chunk with more text; `usage` is what the request used so far, if it is wanted."""
        if logprobs is not None:
            key = b'"delta":{"content":%b}' if self._kind == "chat" else b'"text":%b'
            content = key % _encode(text)
            tail = b',"logprobs":%b,"finish_reason":null' % _encode(logprobs)
            return self._chunk(content + tail, usage)
        if usage is None:
            return b"%b%b%b%b}\n\n" % (
                self._before_text,
                _encode(text),
                self._after_text,
                self._no_usage,
            )
        return b"%b%b%b%b}\n\n" % (
            self._before_text,
            _encode(text),
            self._after_text,
            b',"usage":' + _encode(usage),
        )

    def finish(self, reason: str, usage: Usage | None = None) -> bytes:
        """The chunk with the finish reason, the last one of the choice."""
        empty = b'"delta":{}' if self._kind == "chat" else b'"text":""'
        return self._chunk(empty + b',"logprobs":null,"finish_reason":' + _encode(reason), usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk after the last one, without a choice."""
        return self._head + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n"

    def _chunk(self, choice: bytes, usage: Usage | None) -> bytes:
        tail = self._no_usage if usage is None else b',"usage":' + _encode(usage)
        return self._head + b',"choices":[{"index":0,' + choice + b"}]" + tail + b"}\n\n"

    def _end_of_choice(self, reason: str | None) -> bytes:
        return self._after_key + b',"logprobs":null,"finish_reason":' + _encode(reason) + b"}]"
