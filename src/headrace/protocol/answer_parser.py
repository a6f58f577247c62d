"""One answer's text as deltas: first thoughts are split off, then calls of tools are found.

Text in, deltas out, however the text is cut; what comes out depends on the text alone.
"""

from headrace.protocol.deltas import ContentDelta, Delta
from headrace.protocol.reasoning import ReasoningSplitter
from headrace.protocol.tool_parsers import ToolCallParser


class AnswerParser:
    """The parsers that an answer needs; without any its text is content."""

    def __init__(self, reasoning: ReasoningSplitter | None, tools: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def is_complete(self) -> bool:
        """Whether nothing more counts, as the one call that is allowed was made."""
        return self._tools is not None and self._tools.is_complete

    def push(self, text: str) -> list[Delta]:
        """Read more of the answer."""
        if not text:
            return []
        return self._read([ContentDelta(text)] if self._reasoning is None else self._split(text))

    def finish(self) -> list[Delta]:
        """The answer has ended."""
        held = [] if self._reasoning is None else self._reasoning.finish()
        return self._read(held) + ([] if self._tools is None else self._tools.finish())

    def finish_reason(self, reason: str) -> str:
        """Why the answer ended: what was cut off by its length has no complete calls."""
        called = self._tools is not None and self._tools.call_count
        return "tool_calls" if reason == "stop" and called else reason

    def _split(self, text: str) -> list[Delta]:
        assert self._reasoning is not None
        return self._reasoning.push(text)

    def _read(self, deltas: list[Delta]) -> list[Delta]:
        if self._tools is None:
            return deltas
        read: list[Delta] = []
        for delta in deltas:
            read += self._tools.push(delta.text) if isinstance(delta, ContentDelta) else [delta]
        return read
