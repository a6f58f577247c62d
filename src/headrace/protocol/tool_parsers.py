"""Finds calls of tools in what a model writes, while it writes it.

    TEXT ──opening──▶ BETWEEN ──{──▶ CALL ──}──▶ BETWEEN ──anything else──▶ TEXT
      START ──{ or [──▶ BETWEEN          │
                                 no call after all: its text is content

Models differ in how they write calls; a `ToolFormat` says how, and one parser reads them all. It
goes by characters, so that the same text gives the same deltas however it is cut. What proves to
be no call is content, with nothing lost.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from headrace.protocol.call_scanner import CallScanner, ScanState, blank
from headrace.protocol.deltas import ArgumentsDelta, CallDelta, ContentDelta, Delta


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls."""

    name: str
    opening: str = ""  # the text before calls; none where calls are bare JSON
    closing: str = ""  # the text after a call
    bare: bool = False  # an answer may begin with a call without the opening
    names_before: bool = False  # after the opening a name may stand before the arguments
    skipped: tuple[str, ...] = ()  # texts around calls that mean nothing


hermes = ToolFormat("hermes", opening="<tool_call>", closing="</tool_call>")
llama3 = ToolFormat("llama3", bare=True, skipped=("<|python_tag|>", ";"))
mistral = ToolFormat(
    "mistral", opening="[TOOL_CALLS]", bare=True, names_before=True, skipped=("[ARGS]",)
)
json_format = ToolFormat("json", bare=True, skipped=("```json", "```"))
tool_formats: Mapping[str, ToolFormat] = {
    each.name: each for each in (hermes, llama3, mistral, json_format)
}


def format_of_template(source: str) -> ToolFormat:
    """How the model of this chat template writes calls."""
    if hermes.opening in source:
        return hermes
    if mistral.opening in source:
        return mistral
    if "<|python_tag|>" in source or "ipython" in source:
        return llama3
    return json_format


skipped_characters = frozenset(blank + "[],")  # between calls
held_characters_max = 512  # white space, marks and a name before a call; more is content


class _Place(Enum):
    START = "start"
    TEXT = "text"
    BETWEEN = "between"
    NAME = "name"
    CALL = "call"


class ToolCallParser:
    """One answer's parser."""

    def __init__(self, tool_format: ToolFormat, names: Set[str], *, calls_max: int | None) -> None:
        """Bare calls count only of `names`; after `calls_max` calls the answer is complete."""
        self._format = tool_format
        self._names = names
        self._calls_max = calls_max
        self._place = _Place.START if tool_format.bare else _Place.TEXT
        self._after_opening = False
        self._held = ""  # may become an opening, or is what stands before a call
        self._space = ""  # white space that is content only if more content follows
        self._scanner = CallScanner()
        self._announced = False  # the scanner's call
        self.call_count = 0

    @property
    def is_complete(self) -> bool:
        """Whether all the calls that are allowed were made, so that nothing more counts."""
        return (
            self._calls_max is not None
            and self.call_count >= self._calls_max
            and self._place is not _Place.CALL
        )

    def push(self, text: str) -> list[Delta]:
        """Read more of the answer."""
        deltas: list[Delta] = []
        opening = self._format.opening
        if self._place is _Place.TEXT and not self._held and (opening or " ")[0] not in text:
            self._content(text, deltas)
            return deltas
        for character in text:
            if self.is_complete:
                break
            self._push(character, deltas)
        return _joined(deltas)

    def finish(self) -> list[Delta]:
        """The answer has ended: what was held back is content."""
        deltas: list[Delta] = []
        if self._place is _Place.CALL and not self._announced:
            self._held += self._scanner.raw
        elif self._place in (_Place.CALL, _Place.BETWEEN) and self.call_count:
            self._held = ""
        if self._held:
            self._content(self._cleaned(self._held), deltas)
        if self._space and not self.call_count:
            deltas.append(ContentDelta(self._space))
        self._held = self._space = ""
        return _joined(deltas)

    def _push(self, character: str, deltas: list[Delta]) -> None:
        if self._place is _Place.CALL:
            self._push_call(character, deltas)
        elif self._place is _Place.TEXT:
            self._push_text(character, deltas)
        elif self._place is _Place.NAME:
            self._push_name(character, deltas)
        else:
            self._push_between(character, deltas)

    def _push_text(self, character: str, deltas: list[Delta]) -> None:
        """Content, in which the opening is looked for."""
        opening = self._format.opening
        if not opening:
            self._content(character, deltas)
            return
        self._held += character
        if self._held == opening:
            self._place, self._after_opening = _Place.BETWEEN, True
            return
        while self._held and not opening.startswith(self._held):
            self._content(self._held[0], deltas)
            self._held = self._held[1:]

    def _push_between(self, character: str, deltas: list[Delta]) -> None:
        """Before the first call, or after one; `_held` is all that was read here."""
        self._held += character
        if len(self._held) > held_characters_max:
            self._leave(deltas)
            return
        unread = self._held if self._place is _Place.START else self._unread()
        marks = (self._format.opening, self._format.closing, *self._format.skipped)
        rest = _without_marks(unread, marks)
        if rest is None:
            return  # nothing but marks, or the beginning of one
        if self._format.opening and self._format.opening in unread:
            self._after_opening = True
        if rest == "{":
            self._held = self._held[:-1]
            self._begin_call(CallScanner())
            self._push_call("{", deltas)
        elif self._after_opening and self._format.names_before and _is_name(rest):
            self._place = _Place.NAME
        else:
            self._leave(deltas)

    def _unread(self) -> str:
        """What was held here, without the opening that led here."""
        return self._held.removeprefix(self._format.opening) if self._format.opening else self._held

    def _push_name(self, character: str, deltas: list[Delta]) -> None:
        """A name that stands before its arguments."""
        self._held += character
        named = character in "{[]" or _is_name(character)
        if not named or len(self._held) > held_characters_max:
            self._leave(deltas)
        elif character == "{":
            written = self._held[:-1].rpartition(self._format.opening)[2]
            name = written.partition("[")[0].strip(blank)  # [CALL_ID], [ARGS] may follow
            self._held = self._held[:-1]
            self._begin_call(CallScanner(name))
            self._push_call("{", deltas)

    def _begin_call(self, scanner: CallScanner) -> None:
        self._place, self._scanner, self._announced = _Place.CALL, scanner, False

    def _push_call(self, character: str, deltas: list[Delta]) -> None:
        scanner = self._scanner
        state = scanner.push(character)
        if state is ScanState.BROKEN and not self._announced:
            self._held += scanner.raw
            self._leave(deltas)
            return
        if scanner.name is not None and not self._announced:
            if not self._after_opening and scanner.name not in self._names:
                if state is ScanState.OPEN:
                    return  # its end tells whether it is content that looks like a call
                self._held += scanner.raw
                self._leave(deltas)
                return
            self._announced = True
            self._held = self._space = ""
            deltas.append(CallDelta(self.call_count, scanner.name))
            self.call_count += 1
        if self._announced:
            arguments = scanner.take_arguments()
            if arguments:
                deltas.append(ArgumentsDelta(self.call_count - 1, arguments))
        if state is not ScanState.OPEN:
            self._place = _Place.BETWEEN

    def _leave(self, deltas: list[Delta]) -> None:
        """What was held is content after all, but its last character may begin an opening."""
        held, self._held = self._cleaned(self._held), ""
        self._place, self._after_opening = _Place.TEXT, False
        self._content(held[:-1], deltas)
        if held:
            self._push_text(held[-1], deltas)

    def _cleaned(self, held: str) -> str:
        """What was held, without what ends the call before it."""
        if not self.call_count:
            return held
        held = held.lstrip(blank)
        for mark in (self._format.closing, *self._format.skipped, "]"):
            held = held.removeprefix(mark).lstrip(blank) if mark else held
        return held

    def _content(self, text: str, deltas: list[Delta]) -> None:
        """Emit content; white space waits until something follows it."""
        whole = self._space + text
        shown = whole.rstrip(blank)
        self._space = whole[len(shown) :]
        if shown:
            deltas.append(ContentDelta(shown))


def _without_marks(text: str, marks: tuple[str, ...]) -> str | None:
    """What follows white space, brackets, commas and marks; None if that may still be a mark."""
    longest_first = sorted(filter(None, marks), key=len, reverse=True)
    while text:
        if any(mark != text and mark.startswith(text) for mark in longest_first):
            return None
        found = next((mark for mark in longest_first if text.startswith(mark)), "")
        if not found and text[0] not in skipped_characters:
            return text
        text = text[len(found) or 1 :]
    return None


def _is_name(text: str) -> bool:
    return all(character.isalnum() or character in "_-.:/" for character in text)


def _joined(deltas: list[Delta]) -> list[Delta]:
    """The same deltas with neighbours of one kind as one."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text)
        elif (
            isinstance(delta, ArgumentsDelta)
            and isinstance(last, ArgumentsDelta)
            and last.call_index == delta.call_index
        ):
            joined[-1] = ArgumentsDelta(delta.call_index, last.text + delta.text)
        else:
            joined.append(delta)
    return joined
