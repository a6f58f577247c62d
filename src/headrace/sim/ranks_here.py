"""Several ranks of a model in one process: threads over the memory that processes would share."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.ranks import RankPlace
from headrace.weights.lora.adapter import LoraAdapter


class RanksHere:
    """Ranks of this process, told of adapters by calls."""

    def __init__(self, runners: Sequence[CpuRunner]) -> None:
        self._runners = runners

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Let every one of them put an adapter into a slot."""
        for each in self._runners:
            each.load_adapter(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        """Let them free a slot."""
        for each in self._runners:
            each.unload_adapter(slot)


@contextmanager
def ranks_here(count: int, open_rank: Callable[[RankPlace], CpuRunner]) -> Iterator[CpuRunner]:
    """Rank 0, with the others served by threads until it is closed."""
    descriptor = os.memfd_create("ranks")
    others = [open_rank(RankPlace(rank, count, descriptor)) for rank in range(1, count)]
    serving = [threading.Thread(target=other.serve) for other in others]
    for thread in serving:
        thread.start()
    try:
        with open_rank(RankPlace(0, count, descriptor, RanksHere(others))) as first:
            yield first
    finally:
        for thread in serving:
            thread.join()
        os.close(descriptor)
