"""A small model that guesses what a large one will say: a runner and KV blocks of its own.

It follows the same tokens as the sequences that it guesses for, and draws with their parameters,
seeds and positions: where the two models' distributions agree, so do the draws. What it computed
of a guess that came true stays; the rest is computed anew with the next ones. A prompt is read in
chunks, one with each step, and there are no guesses until it is read.

Its blocks hold a sequence from its first guess to its end. Where they run out, whoever waited
longest for guesses gives way: it can be read again.
"""

from array import array
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.base.clock import Clock
from headrace.engine.runner import ModelRunner, RareFilters, StepBatch
from headrace.engine.sequence import Sequence
from headrace.engine.step_time import StepTime

seed_mask = (1 << 64) - 1
decode_rows_max = 32  # of one sequence: more is reading it, whose rows cost less each


@dataclass(slots=True)
class _Followed:
    """What the draft model has of one sequence."""

    fed: "array[int]" = field(default_factory=lambda: array("i"))  # tokens whose KV is computed
    agreed: int = 0  # of them known to be the sequence's
    blocks: list[int] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """One sequence's share of the draft model's step."""

    sequence: Sequence
    followed: _Followed
    tokens: "array[int]"  # to compute
    is_sampled: bool


class DraftModel:
    """Guesses tokens with a runner that it owns; see ComputingProposer."""

    def __init__(self, runner: ModelRunner, clock: Clock, vocab_size: int) -> None:
        """`vocab_size` is the large model's: a guess that it does not have is none."""
        self._runner = runner
        self._clock = clock
        self._info = runner.info
        self._vocab_size = min(vocab_size, runner.info.vocab_size)
        self._free = list(range(runner.info.num_blocks))
        self._followed: dict[Sequence, _Followed] = {}  # the longest unasked first
        self._time = StepTime()
        self.seconds_total = 0.0  # of its steps
        self.read_s = 0.0  # a token of those read first; 0 before any

    @property
    def runner(self) -> ModelRunner:
        """Its own."""
        return self._runner

    def prepare(self, wanted: Rows[tuple[Sequence, int]]) -> float:
        """Compute up to so many guesses for each of these sequences; the seconds it took.

        Reading a sequence for the first time is not counted: it pays off later."""
        for followed in self._followed.values():
            followed.guesses = []
        counts: dict[Sequence, int] = {}
        for sequence, count in wanted:
            if self._follow(sequence, count, counts):
                counts[sequence] = count
        rows_left = self._info.rows_max
        parts = []
        for sequence in list(counts)[: self._info.sequences_max]:
            followed = self._followed[sequence]
            done = len(followed.fed)
            tokens = sequence.tokens[done : done + rows_left]
            if tokens:
                is_sampled = done + len(tokens) == sequence.total
                parts.append(_Part(sequence, followed, tokens, is_sampled))
                rows_left -= len(tokens)
        seconds = 0.0
        while parts:
            is_decoding = self._is_decoding(parts)
            took_s, guessing = self._compute(parts)
            seconds += took_s if is_decoding else 0.0
            parts = [
                _Part(part.sequence, part.followed, array("i", part.followed.guesses[-1:]), True)
                for part in guessing
                if len(part.followed.guesses) < counts[part.sequence]
            ]
        return seconds

    def unread(self, sequence: Sequence) -> int:
        """Tokens of the sequence that are to be computed before its first guess."""
        followed = self._followed.get(sequence)
        return sequence.total - (0 if followed is None else followed.agreed)

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """The guesses that were prepared."""
        followed = self._followed.get(sequence)
        return followed.guesses[:count] if followed is not None else []

    def token_s(self, sequence_count: int) -> float:
        """What one guess takes where so many sequences get one together; 0 if not yet known."""
        return self._time.step_s(sequence_count) / sequence_count

    def forget(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence. Idempotent."""
        followed = self._followed.pop(sequence, None)
        if followed is not None:
            self._free += followed.blocks

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing of any sequence."""
        return len(self._free) == self._info.num_blocks

    def check_invariants(self) -> None:
        """Assert what must hold between steps; for tests."""
        held = [block for followed in self._followed.values() for block in followed.blocks]
        assert sorted(held + self._free) == list(range(self._info.num_blocks))
        for followed in self._followed.values():
            assert followed.agreed <= len(followed.fed)
            assert len(followed.fed) <= len(followed.blocks) * self._info.block_size_tokens

    def _follow(self, sequence: Sequence, count: int, kept: dict[Sequence, int]) -> bool:
        """Take note of the sequence's new tokens and make room for guesses; False if impossible."""
        total = sequence.total + count
        if total > self._info.max_model_len:
            return False
        followed = self._followed.pop(sequence, None) or _Followed()
        self._followed[sequence] = followed  # the last to give way
        fed, tokens = followed.fed, sequence.tokens
        end = min(len(fed), len(tokens) - 1)  # the last one's row gives the first guess
        agreed = min(followed.agreed, end)
        while agreed < end and fed[agreed] == tokens[agreed]:
            agreed += 1
        del fed[agreed:]
        followed.agreed = agreed
        if max(tokens[agreed:]) >= self._info.vocab_size:
            return False
        needed = -(-total // self._info.block_size_tokens) - len(followed.blocks)
        while needed > len(self._free):
            oldest = next(iter(self._followed))
            if oldest is sequence or oldest in kept:
                return False
            self.forget(oldest)
        followed.blocks += [self._free.pop() for _ in range(needed)]
        return True

    def _is_decoding(self, parts: list[_Part]) -> bool:
        """Whether no part reads more than was said since its last guesses."""
        return max(len(part.tokens) for part in parts) <= decode_rows_max

    def _compute(self, parts: list[_Part]) -> tuple[float, list[_Part]]:
        """One step; the seconds it took, and the parts that got a guess by it."""
        batch = _batch(parts)
        start_s = self._clock.monotonic_s()
        result = self._runner.execute(batch)
        seconds = self._clock.monotonic_s() - start_s
        self.seconds_total += seconds
        if self._is_decoding(parts):
            self._time.record(len(batch.token_ids), seconds)
        else:
            self.read_s = seconds / len(batch.token_ids)
        drawn = iter(result.token_ids.tolist())
        guessing = []
        for part in parts:
            part.followed.fed += part.tokens
            if part.is_sampled and 0 <= (token_id := next(drawn)) < self._vocab_size:
                part.followed.guesses.append(token_id)
                guessing.append(part)
        return seconds, guessing


def _batch(parts: list[_Part]) -> StepBatch:
    """A step of the draft model: each part's last row is drawn as the sequence's next token is."""
    sampled = [part for part in parts if part.is_sampled]
    params = [part.sequence.request.sampling for part in sampled]
    positions = [part.sequence.completion_count + len(part.followed.guesses) for part in sampled]
    filters = None
    if any(param.typical_p < 1 or param.xtc_probability > 0 for param in params):
        filters = RareFilters(
            _floats([param.typical_p for param in params]),
            _floats([param.xtc_threshold for param in params]),
            _floats([param.xtc_probability for param in params]),
        )
    return StepBatch(
        token_ids=np.concatenate([np.array(part.tokens, np.int32) for part in parts]),
        row_starts=_starts([len(part.tokens) for part in parts]),
        context_lens=np.array([len(p.followed.fed) + len(p.tokens) for p in parts], np.int32),
        block_ids=np.concatenate([np.array(part.followed.blocks, np.int32) for part in parts]),
        block_starts=_starts([len(part.followed.blocks) for part in parts]),
        sampled=np.array([i for i, part in enumerate(parts) if part.is_sampled], np.int32),
        temperature=_floats([param.temperature for param in params]),
        top_k=np.array([param.top_k for param in params], np.int32),
        top_p=_floats([param.top_p for param in params]),
        min_p=_floats([param.min_p for param in params]),
        seed=np.array([part.sequence.seed & seed_mask for part in sampled], np.uint64),
        position=np.array(positions, np.int64),
        filters=filters,
    )


def _floats(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _starts(lengths: list[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *lengths], dtype=np.int32)
