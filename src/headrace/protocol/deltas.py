"""What an answer gains from one moment to the next: content, reasoning, calls of tools.

A whole answer is its deltas added up (`Collected`), so it cannot differ from the stream.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class ContentDelta(NamedTuple):
    """More of the answer's own text."""

    text: str


class ReasoningDelta(NamedTuple):
    """More of what the model thinks."""

    text: str


class CallDelta(NamedTuple):
    """A call begins."""

    call_index: int  # of the call in its answer
    name: str


class ArgumentsDelta(NamedTuple):
    """More of a call's arguments, as JSON text."""

    call_index: int
    text: str


Delta = ContentDelta | ReasoningDelta | CallDelta | ArgumentsDelta


@dataclass(slots=True)
class CollectedCall:
    """A call so far."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Collected:
    """All deltas of one answer, added up."""

    content: str = ""
    reasoning: str = ""
    calls: list[CollectedCall] = field(default_factory=list)

    def add(self, deltas: list[Delta]) -> None:
        """Take in the next deltas."""
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self.content += delta.text
            elif isinstance(delta, ReasoningDelta):
                self.reasoning += delta.text
            elif isinstance(delta, CallDelta):
                self.calls.append(CollectedCall(delta.name))
            else:
                self.calls[delta.call_index].arguments += delta.text
