"""Which path somebody meant who asked for one that is not there.

First by what people get wrong with base addresses: a prefix too many, `/v1` missing or twice, a
slash at the end, another case, a plural. Then by letters.
"""

from collections.abc import Iterable
from difflib import get_close_matches

characters_max = 64  # of what is compared by letters, which bounds what a wrong path costs
prefixes_max = 4  # that are taken off
likeness_min = 0.8


class NearestPath:
    """Of the paths of one server."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._by_words = {words_of(path): path for path in reversed(self._paths)}

    def hint(self, path: str) -> str:
        """A sentence with a blank before it; empty if nothing resembles it."""
        found = self._find(path)
        return "" if found is None else f" Did you mean {found}?"

    def _find(self, path: str) -> str | None:
        words = words_of(path)
        for begin in range(min(len(words), prefixes_max + 1)):
            if (found := self._by_words.get(words[begin:])) is not None:
                return found
        if len(path) > characters_max:
            return None
        return next(iter(get_close_matches(path, self._paths, 1, likeness_min)), None)


def words_of(path: str) -> tuple[str, ...]:
    """What distinguishes a path: its parts in small letters, as singulars, without versions."""
    parts = path.lower().split("/", 2 * prefixes_max)
    return tuple(part.removesuffix("s") for part in parts if part not in ("", "v1"))
