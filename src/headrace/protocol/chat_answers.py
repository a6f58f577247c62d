"""Answers of chat and text completions as any engine sends them, read into a few kinds of events.

Translators to other APIs read these, so that they know nothing of chunks. Other engines' further
fields are passed over; of several choices the first is read, as the other APIs give one answer.
"""

from typing import Any, NamedTuple

import msgspec

from headrace.base.errors import UpstreamFailed
from headrace.protocol.deltas import ArgumentsDelta, CallDelta, ContentDelta, ReasoningDelta


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class AnswerUsage(msgspec.Struct):
    """Token counts as engines report them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were in the cache."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0

    @property
    def output_tokens(self) -> int:
        """Output tokens; some engines say null for none."""
        return self.completion_tokens or 0

    @property
    def reasoning_tokens(self) -> int:
        """Output tokens that were thought."""
        details = self.completion_tokens_details
        return (details and details.reasoning_tokens) or 0


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: AnswerUsage | None = None
    error: Any = None


class CallBegun(NamedTuple):
    """A call begins, with the id that its result will name."""

    call: CallDelta
    id: str


class Finished(NamedTuple):
    """The answer's text is complete."""

    reason: str  # stop, length, tool_calls, ...
    stop: str | None  # the stop string that ended it, where the engine tells


AnswerEvent = ContentDelta | ReasoningDelta | CallBegun | ArgumentsDelta | Finished | AnswerUsage

_decoder = msgspec.json.Decoder(_Answer)


def read_answer(data: bytes) -> list[AnswerEvent]:
    """What a chunk, or a whole answer, says in order; UpstreamFailed if it is no answer."""
    try:
        answer = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UpstreamFailed(f"The engine's answer is malformed: {error}.") from None
    events: list[AnswerEvent] = []
    for choice in answer.choices:
        if choice.index == 0:
            _read_choice(choice, events)
    if answer.usage is not None:
        events.append(answer.usage)
    return events


def is_error(data: bytes) -> bool:
    """Whether a stream's event is an error and no chunk."""
    try:
        error = _decoder.decode(data).error
    except msgspec.DecodeError:
        return False
    return error is not None


def _read_choice(choice: _Choice, events: list[AnswerEvent]) -> None:
    message = choice.message or choice.delta or _Message(content=choice.text)
    thought = message.reasoning_content or message.reasoning
    if thought:
        events.append(ReasoningDelta(thought))
    if message.content:
        events.append(ContentDelta(message.content))
    for position, call in enumerate(message.tool_calls or ()):
        index = call.index if choice.message is None else position
        function = call.function or _Function()
        if function.name:
            events.append(CallBegun(CallDelta(index, function.name), call.id or f"call_{index}"))
        if function.arguments:
            events.append(ArgumentsDelta(index, function.arguments))
    if choice.finish_reason is not None:
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        events.append(Finished(choice.finish_reason, stop))
