"""Finds stop strings in text as it comes, holding back no more than what may become one.

The stop that is complete first ends the answer, at the earliest character at which any is; if two
end there, the longer one is cut. An Aho-Corasick automaton over all stops: O(1) a character,
however many and long they are, and the same result for any cutting of the text into pushes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.base.errors import InvalidRequest

stops_characters_max = 8_192  # of all stops together; building takes microseconds for each


class StopResult(NamedTuple):
    """What a push may show, and the stop that ended the answer."""

    text_to_emit: str
    matched: str | None


class _Node:
    """One prefix of a stop."""

    __slots__ = ("depth", "following", "longest_suffix", "stop")

    def __init__(self, depth: int) -> None:
        self.depth = depth  # characters of the prefix
        self.following: dict[str, _Node] = {}
        self.longest_suffix: _Node | None = None  # the longest other prefix that this one ends with
        self.stop: str | None = None  # the longest stop that this prefix ends with


class StopMatcher:
    """One answer's search."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Build the automaton; InvalidRequest for an empty stop, or too many characters."""
        if not all(stops):
            raise InvalidRequest("A stop string must not be empty.", param="stop")
        if sum(map(len, stops)) > stops_characters_max:
            raise InvalidRequest(
                f"Stop strings may have {stops_characters_max} characters together.", param="stop"
            )
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""
        self._matched: str | None = None

    def fresh(self) -> "StopMatcher":
        """The same stops for another answer. Cost: O(1)."""
        other = StopMatcher(())
        other._root = other._node = self._root
        return other

    def push(self, text: str) -> StopResult:
        """Read more of the answer; after a match nothing more is emitted."""
        if self._matched is not None:
            return StopResult("", self._matched)
        whole = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            self._node = self._step(character)
            if self._node.stop is not None:
                self._matched = self._node.stop
                self._held = ""
                return StopResult(whole[: index - len(self._matched)], self._matched)
        emitted_count = len(whole) - self._node.depth
        self._held = whole[emitted_count:]
        return StopResult(whole[:emitted_count], None)

    def finish(self) -> str:
        """The answer ended otherwise: what was held back."""
        held, self._held = self._held, ""
        self._node = self._root
        return held

    def _step(self, character: str) -> _Node:
        node: _Node | None = self._node
        while node is not None:
            following = node.following.get(character)
            if following is not None:
                return following
            node = node.longest_suffix
        return self._root


def _automaton(stops: Sequence[str]) -> _Node:
    """Aho and Corasick, Efficient String Matching, 1975: a trie, then its links breadth first."""
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.following.setdefault(character, _Node(node.depth + 1))
        node.stop = stop
    level = [root]
    while level:
        below: list[_Node] = []
        for node in level:
            for character, child in node.following.items():
                child.longest_suffix = _suffix(node, character, root)
                child.stop = child.stop or child.longest_suffix.stop
                below.append(child)
        level = below
    return root


def _suffix(parent: _Node, character: str, root: _Node) -> _Node:
    candidate = parent.longest_suffix
    while candidate is not None:
        if character in candidate.following:
            return candidate.following[character]
        candidate = candidate.longest_suffix
    return root
