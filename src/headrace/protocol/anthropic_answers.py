"""Chat answers as Anthropic's Messages API sends them: messages, events of streams, errors.

A stream's blocks follow one another: a thought, text, calls. Each has a start, deltas and a stop.
"""

from typing import Any

import msgspec

from headrace.protocol.chat_answers import AnswerUsage, CallBegun, Finished, read_answer
from headrace.protocol.deltas import ArgumentsDelta, ContentDelta, ReasoningDelta
from headrace.protocol.sse import encode_event
from headrace.protocol.translation import events_type

stop_reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
error_types = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_encode = msgspec.json.Encoder().encode
Fields = dict[str, Any]


class MessagesTranslator:
    """One answer's translator."""

    stream_type = events_type

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._blocks: list[Fields] = []
        self._arguments: list[str] = []  # of the call that is the last block
        self._is_open = False  # the last block
        self._started = False
        self._usage = AnswerUsage()
        self._finished: Finished | None = None

    def whole(self, body: bytes) -> bytes:
        """The message."""
        self._read(body)
        self._close()
        return _encode({**self._message(), "content": self._blocks, **self._end()})

    def chunk(self, data: bytes) -> bytes:
        """The events that one chunk becomes; before the first ones the message starts."""
        events = self._read(data)
        if self._started:
            return events
        self._started = True
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = self._usage_fields()
        return _event({"type": "message_start", "message": message}) + events

    def finish(self) -> bytes:
        """The last block's stop, why the message ended, and its end."""
        end = self._end()
        usage = end.pop("usage")
        return (
            self._close()
            + _event({"type": "message_delta", "delta": end, "usage": usage})
            + _event({"type": "message_stop"})
        )

    def error(self, status: int, body: bytes) -> bytes:
        """An error as Anthropic's clients expect it."""
        return _encode(error_fields(status, body))

    def error_event(self, body: bytes) -> bytes:
        """An error that ends the stream."""
        return _event(error_fields(500, body))

    def _message(self) -> Fields:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _end(self) -> Fields:
        finished = self._finished or Finished("stop", None)
        reason = stop_reasons.get(finished.reason, "end_turn")
        if finished.stop is not None:
            reason = "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": finished.stop,
            "usage": self._usage_fields(),
        }

    def _usage_fields(self) -> Fields:
        """Anthropic counts what was cached apart from the other input."""
        usage = self._usage
        return {
            "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
        }

    def _read(self, data: bytes) -> bytes:
        events: list[bytes] = []
        for event in read_answer(data):
            if isinstance(event, ContentDelta):
                events.append(self._text("text", event.text))
            elif isinstance(event, ReasoningDelta):
                events.append(self._text("thinking", event.text))
            elif isinstance(event, CallBegun):
                call = {"type": "tool_use", "id": event.id, "name": event.call.name, "input": {}}
                events.append(self._open(call))
            elif isinstance(event, ArgumentsDelta):
                self._arguments.append(event.text)
                delta = {"type": "input_json_delta", "partial_json": event.text}
                events.append(self._delta(delta))
            elif isinstance(event, Finished):
                self._finished = event
            else:
                self._usage = event
        return b"".join(events)

    def _text(self, kind: str, text: str) -> bytes:
        begun = b""
        if not self._is_open or self._blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            begun = self._open({"type": kind, kind: "", **signature})
        self._blocks[-1][kind] += text
        return begun + self._delta({"type": f"{kind}_delta", kind: text})

    def _open(self, block: Fields) -> bytes:
        closed = self._close()
        self._blocks.append(block)
        self._is_open = True
        start = {"type": "content_block_start", "index": len(self._blocks) - 1}
        return closed + _event({**start, "content_block": block})

    def _delta(self, delta: Fields) -> bytes:
        index = len(self._blocks) - 1
        return _event({"type": "content_block_delta", "index": index, "delta": delta})

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = arguments_object("".join(self._arguments))
            self._arguments.clear()
        return _event({"type": "content_block_stop", "index": len(self._blocks) - 1})


def arguments_object(text: str) -> object:
    """A call's arguments as a value; what was cut off is empty, as it cannot be read."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {"value": value}


def error_fields(status: int, body: bytes) -> Fields:
    """Anthropic's error of an error body in OpenAI's shape; numbers in it stay."""
    try:
        error = msgspec.json.decode(body)["error"]
        message = error["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        error, message = {}, body.decode(errors="replace")[:1000]
    kept = {key: value for key, value in error.items() if key not in ("type", "message")}
    kind = error_types.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, **kept}}


def _event(fields: Fields) -> bytes:
    return encode_event(_encode(fields), fields["type"])
