"""What a router believes an engine's cache to hold, from its own decisions alone.

An LRU of prefixes by endpoint, of as many tokens as the engine has KV. It cannot see evictions that
other routers or long answers cause, so its hits are predictions.
"""

from collections import OrderedDict
from collections.abc import Sequence

from headrace.sim.fleet.request import Segment


class PrefixIndex:
    """The prefixes that one endpoint was sent lately."""

    __slots__ = ("_capacity", "_known", "_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._known: OrderedDict[int, int] = OrderedDict()
        self._tokens = 0

    def match(self, keys: Sequence[int], segments: Sequence[Segment]) -> int:
        """Tokens from the start on that the endpoint should have."""
        matched = 0
        for key, segment in zip(keys, segments, strict=True):
            if key not in self._known:
                break
            matched += segment.tokens
        return matched

    def insert(self, keys: Sequence[int], segments: Sequence[Segment]) -> None:
        """A request with this prompt goes there."""
        for key, segment in zip(reversed(keys), reversed(segments), strict=True):
            if key in self._known:
                self._known.move_to_end(key)
            else:
                self._known[key] = segment.tokens
                self._tokens += segment.tokens
        while self._tokens > self._capacity and len(self._known) > 1:
            self._tokens -= self._known.popitem(last=False)[1]
