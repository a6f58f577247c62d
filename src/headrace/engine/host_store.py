"""KV of preempted sequences in host memory, where copying is cheaper than computing it again.

    copy there and back: blocks * 2 * seconds a block          learnt from the copies
    compute again:       tokens * seconds a row                learnt from the steps (step_time.py)

A device's memory is small and its arithmetic fast; on a CPU the KV lies in host memory already,
and the copy costs what `memcpy` does, a hundredth of computing it. Neither is assumed: the first
copy is made to be measured. Where there is not room for all, the beginning is kept; the rest is
computed again.

What another engine computed (`kv_transfer.py`) waits here too until its request is admitted; it is
bounded by whoever fetches it.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.engine.runner import ModelRunner
from headrace.engine.sequence import Sequence
from headrace.engine.step_time import StepTime

learning_rate = 0.2  # of the copies' rate


@dataclass(frozen=True, slots=True)
class _Kept:
    """A sequence's KV, block by block, and how many tokens of it are computed."""

    blocks: Items[bytes]
    token_count: int
    is_foreign: bool = False  # computed by another engine, and not counted here


class HostStore:
    """Keeps KV of waiting sequences, `blocks_max` blocks at most in all."""

    def __init__(
        self, runner: ModelRunner, clock: Clock, step_time: StepTime, blocks_max: int
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._step_time = step_time
        self._blocks_max = blocks_max
        self._kept: dict[Sequence, _Kept] = {}
        self._block_s: float | None = None  # of one copy, there or back
        self.block_count = 0
        self.saved_tokens_total = 0
        self.restored_tokens_total = 0
        self.imported_tokens_total = 0  # the same of what others computed

    def save(self, sequence: Sequence, block_size_tokens: int) -> None:
        """Copy what a sequence has computed, as far as there is room, if it is the cheaper way.

        It must hold its blocks still, and no step may have begun since they were computed."""
        needed = -(-sequence.computed // block_size_tokens)
        count = min(needed, self._blocks_max - self.block_count)
        tokens = min(sequence.computed, count * block_size_tokens)
        if count <= 0 or not self._is_cheaper(count, tokens):
            return
        start_s = self._clock.monotonic_s()
        blocks = [self._runner.export_blocks([block]) for block in sequence.blocks[:count]]
        self._learn(count, start_s)
        self._kept[sequence] = _Kept(blocks, tokens)
        self.block_count += count
        self.saved_tokens_total += tokens

    def adopt(self, sequence: Sequence, blocks: Items[bytes], token_count: int) -> None:
        """Keep what another engine computed of a sequence that waits."""
        self._kept[sequence] = _Kept(blocks, token_count, is_foreign=True)

    def token_count(self, sequence: Sequence) -> int:
        """How many of a sequence's tokens can be restored."""
        kept = self._kept.get(sequence)
        return 0 if kept is None else kept.token_count

    def restore(self, sequence: Sequence, first: int) -> None:
        """Copy a sequence's KV back into its blocks, from the block with number `first` on."""
        kept = self._kept[sequence]
        start_s = self._clock.monotonic_s()
        for index in range(first, len(kept.blocks)):
            self._runner.import_blocks([sequence.blocks[index]], kept.blocks[index])
        self._learn(len(kept.blocks) - first, start_s)
        if kept.is_foreign:
            self.imported_tokens_total += kept.token_count
        else:
            self.restored_tokens_total += kept.token_count
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Free what is kept of a sequence. Idempotent."""
        kept = self._kept.pop(sequence, None)
        if kept is not None and not kept.is_foreign:
            self.block_count -= len(kept.blocks)

    def check_invariants(self, waiting: list[Sequence]) -> None:
        """Assert what must hold between steps; for tests."""
        assert self.block_count == sum(
            len(kept.blocks) for kept in self._kept.values() if not kept.is_foreign
        )
        assert self.block_count <= self._blocks_max
        for sequence, kept in self._kept.items():
            assert any(sequence is other for other in waiting), "kept for one that does not wait"
            assert kept.token_count < sequence.total

    def _is_cheaper(self, block_count: int, token_count: int) -> bool:
        if self._block_s is None:
            return True
        return 2 * block_count * self._block_s <= token_count * self._step_time.row_s(token_count)

    def _learn(self, block_count: int, start_s: float) -> None:
        if block_count <= 0:
            return
        block_s = (self._clock.monotonic_s() - start_s) / block_count
        if self._block_s is None:
            self._block_s = block_s
        else:
            self._block_s += learning_rate * (block_s - self._block_s)
