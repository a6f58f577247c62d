"""Tells what a model thinks from what it answers, while it writes both.

    UNDECIDED ──opening──▶ INSIDE ──closing──▶ AFTER
        └────────anything else──────────────────▲

Whether the thinking has begun already is known from the prompt: many templates end with the
opening, or with an empty thought where none is wanted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.protocol.call_scanner import blank
from headrace.protocol.deltas import ContentDelta, Delta, ReasoningDelta


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The texts around a thought."""

    name: str
    opening: str
    closing: str


reasoning_formats: Mapping[str, ReasoningFormat] = {
    each.name: each
    for each in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
        ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
        ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    )
}


def reasoning_of_template(source: str) -> ReasoningFormat | None:
    """How the model of this chat template marks its thoughts; None if it marks none."""
    for each in reasoning_formats.values():
        if each.closing in source or each.opening in source:
            return each
    return None


class _Place(Enum):
    UNDECIDED = "undecided"
    INSIDE = "inside"
    AFTER = "after"


class ReasoningSplitter:
    """One answer's thoughts and content; white space around a thought belongs to neither."""

    def __init__(self, reasoning_format: ReasoningFormat, prompt_tail: str) -> None:
        """`prompt_tail` is the end of the prompt as the template wrote it."""
        self._format = reasoning_format
        begun = prompt_tail.rstrip(blank).endswith(reasoning_format.opening)
        self._place = _Place.INSIDE if begun else _Place.UNDECIDED
        self._held = ""
        self._skips_space = True  # at the beginning of a thought, and of what follows it

    @property
    def is_inside(self) -> bool:
        """Whether what comes next is thought."""
        return self._place is _Place.INSIDE

    def push(self, text: str) -> list[Delta]:
        """Read more of the answer."""
        deltas: list[Delta] = []
        if self._place is _Place.UNDECIDED:
            text = self._decide(text)
        if self._place is _Place.INSIDE:
            text = self._push_inside(text, deltas)
        if self._place is _Place.AFTER and text:
            if self._skips_space:
                text = text.lstrip(blank)
                self._skips_space = not text
            if text:
                deltas.append(ContentDelta(text))
        return deltas

    def finish(self) -> list[Delta]:
        """The answer has ended: what was held back."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ReasoningDelta(held) if self._place is _Place.INSIDE else ContentDelta(held)]

    def _decide(self, text: str) -> str:
        """See whether the answer begins with a thought; the text that is left to read."""
        self._held += text
        opening = self._format.opening
        begun = self._held.lstrip(blank)
        if begun.startswith(opening):
            self._held = ""
            self._place = _Place.INSIDE
            return begun[len(opening) :]
        if opening.startswith(begun):
            return ""
        held, self._held = self._held, ""
        self._place, self._skips_space = _Place.AFTER, False
        return held

    def _push_inside(self, text: str, deltas: list[Delta]) -> str:
        """Emit the thought; the text after its end."""
        whole = self._held + text
        if self._skips_space:
            whole = whole.lstrip(blank)
        thought, closing, rest = whole.partition(self._format.closing)
        ended = bool(closing)
        shown = (thought if ended else _without_ending(thought, self._format.closing)).rstrip(blank)
        if shown:
            self._skips_space = False
            deltas.append(ReasoningDelta(shown))
        self._held = "" if ended else whole[len(shown) :]
        if ended:
            self._place, self._skips_space = _Place.AFTER, True
        return rest


def _without_ending(text: str, closing: str) -> str:
    """The text without an end that may become the closing."""
    for length in range(min(len(closing) - 1, len(text)), 0, -1):
        if text.endswith(closing[:length]):
            return text[:-length]
    return text
