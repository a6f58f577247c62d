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
        self._keeps_content = keeps_content
        self._references: dict[int, int] = {}
        self._held_size: dict[int, int] = {}  # tokens of held segments
        self._cached: OrderedDict[int, int] = OrderedDict()  # tokens that are left of each
        self._cached_tokens = 0
        self.free_tokens = capacity_tokens  # what is not held; cached content gives way

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
                self.free_tokens -= size
                self._cached_tokens -= self._cached.pop(key, 0)
        self._evict()

    def release(self, keys: Sequence[int], computed_tokens: int) -> None:
        """The request runs no more; what was computed of its prompt stays, as long as it may."""
        references, sizes = self._references, self._held_size
        end = sum([sizes[key] for key in keys])
        for key in reversed(keys):
            size = sizes[key]
            start = end - size
            count = references[key] - 1
            if count:
                references[key] = count
            else:
                del references[key], sizes[key]
                self.free_tokens += size
                self._keep(key, min(size, computed_tokens - start))
            end = start
        self._evict()

    def grow(self, tokens: int) -> None:
        """Running requests made so many tokens, or, if negative, gave them back."""
        self.free_tokens -= tokens
        if self._cached_tokens > self.free_tokens:
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
        excess = self._cached_tokens - self.free_tokens
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
