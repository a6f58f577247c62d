"""Chat and text answers as Ollama sends them: one JSON object, or one a line as they come."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.base.clock import Clock
from headrace.protocol.anthropic_answers import arguments_object
from headrace.protocol.chat_answers import (
    AnswerEvent,
    AnswerUsage,
    CallBegun,
    Finished,
    read_answer,
)
from headrace.protocol.deltas import ArgumentsDelta, ContentDelta, ReasoningDelta
from headrace.protocol.translation import lines_type

_encode = msgspec.json.Encoder().encode
Fields = dict[str, Any]


class OllamaTranslator:
    """One answer's translator; times are those of whoever serves."""

    stream_type = lines_type

    def __init__(self, model: str, clock: Clock, *, is_chat: bool) -> None:
        """`is_chat`: the text is in a message; otherwise it is `response`."""
        self._model = model
        self._clock = clock
        self._is_chat = is_chat
        self._start_s = clock.monotonic_s()
        self._first_s: float | None = None  # when the answer began
        self._usage = AnswerUsage()
        self._reason = "stop"
        self._call: tuple[str, list[str]] | None = None  # the one that is being written

    def whole(self, body: bytes) -> bytes:
        """The answer as one object."""
        self._first_s = self._start_s  # where the prompt's share ends is not known
        text, thought, calls = self._read(body)
        calls += self._end_call()
        return _encode({**self._line(text, thought, calls), **self._end()})

    def chunk(self, data: bytes) -> bytes:
        """The line that one chunk becomes; none if it adds nothing."""
        text, thought, calls = self._read(data)
        if not (text or thought or calls):
            return b""
        return _encode({**self._line(text, thought, calls), "done": False}) + b"\n"

    def finish(self) -> bytes:
        """The last line, with the numbers."""
        calls = self._end_call()
        last = _encode({**self._line("", "", []), **self._end()}) + b"\n"
        if not calls:
            return last
        return _encode({**self._line("", "", calls), "done": False}) + b"\n" + last

    def error(self, status: int, body: bytes) -> bytes:
        """An error as Ollama's clients expect it."""
        return _encode({"error": _message(body)})

    def error_event(self, body: bytes) -> bytes:
        """An error as the last line."""
        return _encode({"error": _message(body)}) + b"\n"

    def _read(self, data: bytes) -> tuple[str, str, list[Fields]]:
        if self._first_s is None:
            self._first_s = self._clock.monotonic_s()
        text = thought = ""
        calls: list[Fields] = []
        for event in read_answer(data):
            if isinstance(event, ContentDelta):
                text += event.text
            elif isinstance(event, ReasoningDelta):
                thought += event.text
            else:
                calls += self._note(event)
        return text, thought, calls

    def _note(self, event: AnswerEvent) -> list[Fields]:
        """Take in what is no text; the call that it completes."""
        ended: list[Fields] = []
        if isinstance(event, CallBegun):
            ended = self._end_call()
            self._call = (event.call.name, [])
        elif isinstance(event, ArgumentsDelta):
            assert self._call is not None, "arguments follow their call's beginning"
            self._call[1].append(event.text)
        elif isinstance(event, Finished):
            ended = self._end_call()
            self._reason = "length" if event.reason == "length" else "stop"
        elif isinstance(event, AnswerUsage):
            self._usage = event
        return ended

    def _end_call(self) -> list[Fields]:
        """Calls are sent whole: the arguments are a value, no text."""
        if self._call is None:
            return []
        name, pieces = self._call
        self._call = None
        return [{"function": {"name": name, "arguments": arguments_object("".join(pieces))}}]

    def _line(self, text: str, thought: str, calls: list[Fields]) -> Fields:
        created = datetime.fromtimestamp(self._clock.wall_s(), UTC).isoformat()
        line: Fields = {"model": self._model, "created_at": created.replace("+00:00", "Z")}
        thinking = {"thinking": thought} if thought else {}
        if not self._is_chat:
            return {**line, "response": text, **thinking}
        message: Fields = {"role": "assistant", "content": text, **thinking}
        if calls:
            message["tool_calls"] = calls
        return {**line, "message": message}

    def _end(self) -> Fields:
        now_s = self._clock.monotonic_s()
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _nanoseconds(now_s - self._start_s),
            "load_duration": 0,
            "prompt_eval_count": self._usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first_s - self._start_s),
            "eval_count": self._usage.output_tokens,
            "eval_duration": _nanoseconds(now_s - first_s),
        }


def _nanoseconds(duration_s: float) -> int:
    return int(duration_s * 1e9)


def _message(body: bytes) -> str:
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:1000]
    return str(message)
