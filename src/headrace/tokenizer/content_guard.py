"""Keeps what users write from being read as control tokens, whatever the template does with it.

A template mixes its own control tokens with users' texts in one string. Before it is rendered, a
marker, a character that no message contains, is put into each control token's text inside the
messages, after its first character. Templates trim, split and join these texts as ever; the
encoder does not see a control token where a marker is, and then drops the markers.

Also a control token cut over two messages' texts does not form: a text that ends with the
beginning of one, or begins with the end of one, gets a marker there too. A control token of a
single character has no inside: two markers follow it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.base.errors import InvalidRequest

nesting_max = 64
# Noncharacters first, which no text should have; then private-use ones, if a caller tries them all.
marker_ranges = (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class GuardedContents:
    """What to render."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None
    marker: str | None  # None if nothing had to be marked


class ContentGuard:
    """Knows a model's control tokens."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        texts = sorted(control_texts, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, texts)) or r"(?!)"
        # A lookahead finds every start, also of tokens that overlap.
        self._starts = re.compile(f"(?={alternatives})" if texts else r"(?!)")
        self._beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        self._endings = {text[start:] for text in texts for start in range(1, len(text))}
        self._singles = {text for text in texts if len(text) == 1}
        self._length_max = max(map(len, texts), default=0)

    def guard(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
    ) -> GuardedContents:
        """Mark what has to be; InvalidRequest if the values are nested too deep."""
        texts: list[str] = []

        def collect(text: str) -> str:
            texts.append(text)
            return text

        _map_texts(messages, collect)
        _map_texts(tools, collect)
        if not any(self._places(text) for text in texts):
            return GuardedContents(messages, tools, None)
        marker = _unused_character(texts)

        def mark(text: str) -> str:
            return _insert(text, self._places(text), marker)

        return GuardedContents(
            cast("Sequence[Mapping[str, object]]", _map_texts(messages, mark)),
            cast("Sequence[Mapping[str, object]] | None", _map_texts(tools, mark)),
            marker,
        )

    def _places(self, text: str) -> list[int]:
        """Where markers go, in order."""
        starts = [match.start() for match in self._starts.finditer(text)]
        places = {start + 1 for start in starts}
        # Templates trim: what is next to another text may be what is inside the white space.
        trimmed_end = len(text.rstrip())
        trimmed_start = len(text) - len(text.lstrip())
        length_max = min(self._length_max, trimmed_end - trimmed_start)
        for length in range(1, length_max + 1):
            if text[trimmed_end - length : trimmed_end] in self._beginnings:
                places.add(trimmed_end)
            if text[trimmed_start : trimmed_start + length] in self._endings:
                places.add(trimmed_start)
        doubled = [start + 1 for start in starts if text[start] in self._singles]
        return sorted([*places, *doubled])


def _map_texts(value: object, change: Callable[[str], str], nesting: int = 0) -> object:
    """The same JSON-like value with each string, keys included, replaced by what it changes to."""
    if nesting > nesting_max:
        raise InvalidRequest(f"Values are nested more than {nesting_max} deep.", param="messages")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _map_texts(key, change, nesting + 1): _map_texts(item, change, nesting + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_texts(item, change, nesting + 1) for item in value]
    return value


def _insert(text: str, places: Sequence[int], marker: str) -> str:
    pieces: list[str] = []
    start = 0
    for place in places:
        pieces.append(text[start:place])
        start = place
    return marker.join([*pieces, text[start:]])


def _unused_character(texts: Sequence[str]) -> str:
    used = set().union(*texts)
    for candidates in marker_ranges:
        for number in candidates:
            if chr(number) not in used:
                return chr(number)
    raise InvalidRequest(
        "The messages use every private character of Unicode; leave one out.", param="messages"
    )
