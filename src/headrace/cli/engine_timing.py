"""Times prefill and decode steps of a model runner, with nothing else in between.

The batches are what the scheduler makes at its best: full prefill chunks, then one row a sequence.
Times are medians: one step that another program disturbed does not count.
"""

import math
import statistics
from dataclasses import dataclass

import numpy as np

from headrace.base.clock import Clock
from headrace.engine.runner import ModelRunner, StepBatch

warm_up_steps = 2
token_stride = 7919  # a prime: neighbouring prompt tokens differ


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of one measured piece of work."""

    seconds: float
    token_count: int  # computed in that time

    @property
    def tokens_per_s(self) -> float:
        """The rate."""
        return self.token_count / self.seconds


class StepTimer:
    """Owns a runner's KV blocks, and gives each sequence its own stretch of them."""

    def __init__(self, runner: ModelRunner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock
        self._blocks_each = 0

    def prefill(self, token_count: int, repeats: int) -> Timing:
        """One prompt from its first token to its first sampled one."""
        self._make_room(token_count)
        self._prefill_all(1, token_count)
        times_s = []
        for _ in range(repeats):
            start_s = self._clock.monotonic_s()
            self._prefill_all(1, token_count)
            times_s.append(self._clock.monotonic_s() - start_s)
        return Timing(statistics.median(times_s), token_count)

    def decode(self, sequence_count: int, context_tokens: int, steps: int) -> Timing:
        """One token for each of `sequence_count` sequences that have `context_tokens` already."""
        self._make_room(context_tokens + warm_up_steps + steps)
        self._prefill_all(sequence_count, context_tokens)
        times_s = []
        for step in range(warm_up_steps + steps):
            computed = context_tokens + step
            batch = self._batch([(s, computed, 1) for s in range(sequence_count)], sample=True)
            start_s = self._clock.monotonic_s()
            self._runner.execute(batch)
            if step >= warm_up_steps:
                times_s.append(self._clock.monotonic_s() - start_s)
        return Timing(statistics.median(times_s), sequence_count)

    def _make_room(self, tokens_per_sequence: int) -> None:
        self._blocks_each = math.ceil(tokens_per_sequence / self._runner.info.block_size_tokens)

    def _prefill_all(self, sequence_count: int, token_count: int) -> None:
        rows_max = self._runner.info.rows_max
        for sequence in range(sequence_count):
            for start in range(0, token_count, rows_max):
                rows = min(rows_max, token_count - start)
                last = start + rows == token_count
                self._runner.execute(self._batch([(sequence, start, rows)], sample=last))

    def _batch(self, parts: list[tuple[int, int, int]], *, sample: bool) -> StepBatch:
        """A step of `(sequence, tokens computed before, rows)`; all of them sampled or none."""
        rows = [count for _, _, count in parts]
        block_size = self._runner.info.block_size_tokens
        tables = [
            np.arange(math.ceil((start + count) / block_size), dtype=np.int32)
            + sequence * self._blocks_each
            for sequence, start, count in parts
        ]
        tokens = [
            (np.arange(start, start + count) * token_stride + sequence)
            % self._runner.info.vocab_size
            for sequence, start, count in parts
        ]
        sampled_count = len(parts) if sample else 0
        return StepBatch(
            token_ids=np.concatenate(tokens).astype(np.int32),
            row_starts=np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
            context_lens=np.array([start + count for _, start, count in parts], np.int32),
            block_ids=np.concatenate(tables),
            block_starts=np.concatenate([[0], np.cumsum([len(t) for t in tables])]).astype(
                np.int32
            ),
            sampled=np.arange(sampled_count, dtype=np.int32),
            temperature=np.zeros(sampled_count, np.float32),
            top_k=np.zeros(sampled_count, np.int32),
            top_p=np.ones(sampled_count, np.float32),
            min_p=np.zeros(sampled_count, np.float32),
            seed=np.zeros(sampled_count, np.uint64),
            position=np.zeros(sampled_count, np.int64),
        )
