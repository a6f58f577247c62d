"""Keeps a node's weight cache within its budget: what was unused for longest goes first.

What a process holds stays (`weights.file_use`), and so does what the node is ordered to have or to
run with, since engines of others hold nothing. So the cache may be over its budget: by all that is
needed, and by what was fetched since the last look.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.base.clock import Clock
from headrace.kernels import packed_layout
from headrace.spec.nodes import CacheReport, NodeOrders
from headrace.weights.cache import ModelCache
from headrace.weights.cache_contents import CacheItem, PrunePolicy, cache_items, chosen, remove


class CacheKeeper:
    """The cache of one node; blocks, so run it in a thread."""

    def __init__(self, cache_dir: Path, size_bytes_max: int | None, clock: Clock) -> None:
        """`size_bytes_max` None: nothing is removed, and the size is told all the same."""
        self._cache = ModelCache(cache_dir)
        self._size_bytes_max = size_bytes_max
        self._clock = clock
        self.report = CacheReport()

    def tidy(self, needed: Iterable[str]) -> list[CacheItem]:
        """Remove what is over the budget, but nothing that lies at a needed path."""
        kept = {Path(path).resolve() for path in needed}
        items = cache_items(self._cache, packed_layout())
        gone = [item for item in self._goners(items, kept) if remove(self._cache, item)]
        size_bytes = sum(item.size_bytes for item in items) - sum(item.size_bytes for item in gone)
        self.report = CacheReport(
            size_bytes=size_bytes,
            size_bytes_max=self._size_bytes_max,
            removed_count=self.report.removed_count + len(gone),
        )
        return gone

    def _goners(self, items: Sequence[CacheItem], kept: set[Path]) -> list[CacheItem]:
        if self._size_bytes_max is None:
            return []
        free = [item for item in items if kept.isdisjoint(item.paths)]
        held_bytes = sum(item.size_bytes for item in items) - sum(i.size_bytes for i in free)
        room_bytes = max(0, self._size_bytes_max - held_bytes)
        return chosen(free, PrunePolicy(size_bytes_max=room_bytes), self._clock.wall_s())


def needed_paths(orders: NodeOrders, present: Iterable[str | None]) -> list[str]:
    """Where the files lie that orders name: those of models, and whatever a command mentions."""
    words = (word for launch in orders.launches for word in launch.argv)
    named = (word.rpartition("=")[2] for word in words)  # `--model=/path`, `name=/adapters/x`
    return [*filter(None, present), *(word for word in named if word.startswith("/"))]
