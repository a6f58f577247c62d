"""What an engine's KV pool holds, counted in segments instead of blocks; for the aggregate engine.

held       segments of running requests, once however many share them, and their outputs
cached     segments that nobody runs; the least lately released give way, tail first
held + cached <= capacity
"""

from collections import OrderedDict
from collections.abc import Sequence


class SegmentCache:
    """Tokens by prefix key: references of the held ones, an order of eviction of the others."""

    def __init__(self, capacity_tokens: int, *, keeps_content: bool) -> None:
        self._capacity = capacity_tokens
        self._keeps_content = keeps_content
        self._references: dict[int, int] = {}
        self._held_size: dict[int, int] = {}  # tokens of held segments
        self._cached: OrderedDict[int, int] = OrderedDict()  # tokens that are left of each
        self._cached_tokens = 0
        self.held_tokens = 0

    @property
    def free_tokens(self) -> int:
        """What is not held; cached content gives way."""
        return self._capacity - self.held_tokens

    def match(self, keys: Sequence[int], sizes: Sequence[int]) -> tuple[int, int, int]:
        """Tokens known from the start on, how many of them are held, and segments fully known."""
        known = held = complete = 0
        for key, size in zip(keys, sizes, strict=True):
            if key in self._references:
                known += size
                held += size
            else:
                left = self._cached.get(key, 0)
                known += left
                if left < size:
                    break
            complete += 1
        return known, held, complete

    def hold(self, keys: Sequence[int], sizes: Sequence[int]) -> None:
        """A request with this prompt runs."""
        for key, size in zip(keys, sizes, strict=True):
            count = self._references.get(key, 0)
            self._references[key] = count + 1
            if not count:
                self._held_size[key] = size
                self.held_tokens += size
                self._cached_tokens -= self._cached.pop(key, 0)
        self._evict()

    def release(self, keys: Sequence[int], computed_tokens: int) -> None:
        """The request runs no more; what was computed of its prompt stays, as long as it may."""
        ends = []
        end = 0
        for key in keys:
            end += self._held_size[key]
            ends.append(end)
        for key, end in zip(reversed(keys), reversed(ends), strict=True):
            count = self._references[key] - 1
            if count:
                self._references[key] = count
                continue
            del self._references[key]
            size = self._held_size.pop(key)
            self.held_tokens -= size
            self._keep(key, min(size, computed_tokens - (end - size)))
        self._evict()

    def grow(self, tokens: int) -> None:
        """Running requests made so many tokens, or, if negative, gave them back."""
        self.held_tokens += tokens
        self._evict()

    def keep(self, key: int, tokens: int) -> None:
        """Content that a request leaves besides its prompt."""
        if key not in self._references and key not in self._cached:
            self._keep(key, tokens)
            self._evict()

    def _keep(self, key: int, tokens: int) -> None:
        if self._keeps_content and tokens > 0:
            self._cached[key] = tokens
            self._cached_tokens += tokens

    def _evict(self) -> None:
        excess = self.held_tokens + self._cached_tokens - self._capacity
        cached = self._cached
        while excess > 0 and cached:
            key, tokens = cached.popitem(last=False)
            if tokens > excess:
                cached[key] = tokens - excess
                cached.move_to_end(key, last=False)
                self._cached_tokens -= excess
                return
            self._cached_tokens -= tokens
            excess -= tokens
