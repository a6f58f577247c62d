"""Stream chunks as ready server-sent events; what never changes in a stream is encoded once.

Most chunks of a stream differ in the text alone, so a chunk costs one string escape and one join.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headrace.protocol.deltas import ArgumentsDelta, CallDelta, ContentDelta, Delta, ReasoningDelta
from headrace.protocol.responses import ChatLogprobs, TextLogprobs, Usage

ChunkKind = Literal["chat", "text"]

_encode = msgspec.json.Encoder().encode
_objects: dict[ChunkKind, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}


class ChunkWriter:
    """Encodes the chunks of one stream: `opening`, any number of `text`, `finish`, `usage`."""

    def __init__(
        self,
        kind: ChunkKind,
        stream_id: str,
        created: int,
        model: str,
        *,
        usage_chunk: bool,
        index: int = 0,
    ) -> None:
        """`index` is the choice's. With `usage_chunk` every other chunk says `"usage":null`."""
        self._kind = kind
        self._choice = b',"choices":[{"index":%d,' % index
        head = {"id": stream_id, "object": _objects[kind], "created": created, "model": model}
        self._head = b"data: " + _encode(head)[:-1]
        self._no_usage = b',"usage":null' if usage_chunk else b""
        content_key = b'"delta":{"content":' if kind == "chat" else b'"text":'
        self._before_text = self._head + self._choice + content_key
        self._after_key = b"}" if kind == "chat" else b""
        self._after_text = self._end_of_choice(None)

    def opening(
        self, usage: Usage | None = None, prompt_token_ids: Sequence[int] | None = None
    ) -> bytes:
        """The first chunk of a chat, which names the role; nothing for a text completion."""
        if self._kind == "text":
            return b""
        delta = b'"delta":{"role":"assistant","content":""}'
        asked = b"" if prompt_token_ids is None else _field("prompt_token_ids", prompt_token_ids)
        return self._chunk(delta + b',"logprobs":null,"finish_reason":null', usage, asked)

    def text(
        self,
        text: str,
        usage: Usage | None = None,
        logprobs: ChatLogprobs | TextLogprobs | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> bytes:
        """A chunk with more text; `usage` is what the request used so far, if it is wanted.

        `extra` are further fields of the choice."""
        if logprobs is not None or extra:
            key = b'"delta":{"content":%b}' if self._kind == "chat" else b'"text":%b'
            return self._marked(key % _encode(text), usage, logprobs, extra)
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

    def delta(
        self,
        delta: Delta,
        call_id: str,
        usage: Usage | None = None,
        logprobs: ChatLogprobs | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> bytes:
        """A chunk with what a chat's answer gained; `call_id` is that of a call's beginning."""
        assert self._kind == "chat", "a text completion has text alone"
        if isinstance(delta, ContentDelta):
            return self.text(delta.text, usage, logprobs, extra)
        return self._marked(
            b'"delta":' + _encode(_delta_fields(delta, call_id)), usage, logprobs, extra
        )

    def _marked(
        self,
        content: bytes,
        usage: Usage | None,
        logprobs: ChatLogprobs | TextLogprobs | None,
        extra: Mapping[str, object] | None,
    ) -> bytes:
        fields = b"".join(_field(name, value) for name, value in (extra or {}).items())
        tail = b',"logprobs":%b,"finish_reason":null%b' % (_encode(logprobs), fields)
        return self._chunk(content + tail, usage)

    def finish(self, reason: str, usage: Usage | None = None, stop: str | None = None) -> bytes:
        """The chunk with the finish reason, the last one of the choice.

        `stop` is the stop string that ended it, if one did."""
        empty = b'"delta":{}' if self._kind == "chat" else b'"text":""'
        ended = b',"logprobs":null,"finish_reason":' + _encode(reason)
        at = b"" if stop is None else _field("stop_reason", stop)
        return self._chunk(empty + ended + at, usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk after the last one, without a choice."""
        return self._head + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n"

    def _chunk(self, choice: bytes, usage: Usage | None, more: bytes = b"") -> bytes:
        tail = more + (self._no_usage if usage is None else b',"usage":' + _encode(usage))
        return self._head + self._choice + choice + b"}]" + tail + b"}\n\n"

    def _end_of_choice(self, reason: str | None) -> bytes:
        return self._after_key + b',"logprobs":null,"finish_reason":' + _encode(reason) + b"}]"


def _field(name: str, value: object) -> bytes:
    return b',"%b":%b' % (name.encode(), _encode(value))


def _delta_fields(delta: ReasoningDelta | CallDelta | ArgumentsDelta, call_id: str) -> object:
    """A delta as OpenAI's clients read it; thoughts have two names among clients."""
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text, "reasoning": delta.text}
    if isinstance(delta, CallDelta):
        begun = {"name": delta.name, "arguments": ""}
        call = {"index": delta.call_index, "id": call_id, "type": "function", "function": begun}
    else:
        call = {"index": delta.call_index, "function": {"arguments": delta.text}}
    return {"tool_calls": [call]}
