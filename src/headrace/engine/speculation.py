"""Speculation: guesses of the next tokens, verified in the step that computes them anyway.

A decode step reads all weights for one token a sequence. With drafts it computes the rows of the
guessed tokens in the same pass; the sampler, with the same seed and position, says what the token
is at each place. A guess that is right was computed one step early; after the first wrong one the
rest is thrown away. So tokens are the same with and without it, only the number of steps changes.

How many drafts: a row more is worth its time if it yields tokens at the rate of the step without:

    acceptance^i > row / (base + rows * row) * expected tokens of the step       (step_time.py)

At one sequence on a memory-bound machine the right side is small; with many sequences, or where
arithmetic bounds the step, it comes near 1 and nothing is drafted. `acceptance` is learnt for each
sequence, and creeps up while nothing is drafted, so that it is tried again.
"""

from collections.abc import Sequence as Rows
from math import log
from typing import Protocol

from headrace.engine.sequence import Sequence
from headrace.engine.step_time import StepTime

learning_rate = 0.15
acceptance_max = 0.98
acceptance_min = 0.02
recovery = 0.02  # share of the way back to `recovered` at each step without a draft
recovered = 0.5


class Proposer(Protocol):
    """Guesses what comes next, cheaply; being wrong costs time, never correctness."""

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """Up to `count` tokens that may follow the sequence's own."""
        ...


class Extend(Protocol):
    """Makes room for drafts."""

    def __call__(self, sequence: Sequence, count: int) -> int:
        """Hold blocks for `count` more tokens; for how many there is room."""
        ...


class Speculator:
    """Gives the decodes of a step their drafts, and learns from what became of them."""

    def __init__(self, proposer: Proposer, draft_max: int) -> None:
        self._proposer = proposer
        self._draft_max = draft_max
        self._time = StepTime()  # of steps without a prompt's chunk
        self.drafts_total = 0
        self.accepted = [0] * draft_max  # by place in the draft, as the next one
        self.drafted = [0] * draft_max

    def draft(self, decodes: Rows[Sequence], rows_left: int, extend: Extend) -> None:
        """Give these sequences drafts, `rows_left` at most in all."""
        rows = expected = float(len(decodes))
        for sequence in decodes:
            worth = self._least_acceptance(rows, expected)
            count = min(self._count(sequence, worth), rows_left)
            if count <= 0 or sequence.constraint is not None:
                continue
            drafts = self._proposer.propose(sequence, count)
            drafts = drafts[: extend(sequence, len(drafts))] if drafts else drafts
            sequence.drafts = drafts
            rows_left -= len(drafts)
            rows += len(drafts)
            expected += sum(sequence.draft_acceptance**place for place in range(1, len(drafts) + 1))

    def record_step(self, rows: int, seconds: float) -> None:
        """Learn what a step without a prompt's chunk cost."""
        self._time.record(rows, seconds)

    def record_drafts(self, sequence: Sequence, accepted: int) -> None:
        """Learn how many of a sequence's drafts were right, and forget them."""
        drafted = len(sequence.drafts)
        self.drafts_total += 1
        for place in range(drafted):
            self.drafted[place] += 1
        acceptance = sequence.draft_acceptance
        for place in range(accepted):
            self.accepted[place] += 1
            acceptance += learning_rate * (1 - acceptance)
        if accepted < drafted:
            acceptance -= learning_rate * acceptance
        sequence.draft_acceptance = min(max(acceptance, acceptance_min), acceptance_max)
        sequence.drafts = []

    def _least_acceptance(self, rows: float, expected: float) -> float:
        """The chance from which on a draft is worth its row."""
        if not self._time.is_known:
            return 0.0
        row_s = self._time.row_s
        return row_s * expected / (self._time.base_s + rows * row_s)

    def _count(self, sequence: Sequence, worth: float) -> int:
        most = min(self._draft_max, sequence.remaining_count - 1)
        acceptance = sequence.draft_acceptance
        if worth <= acceptance_min**most:
            return most
        count = min(most, int(log(worth) / log(acceptance))) if worth < 1 else 0
        if count <= 0:
            sequence.draft_acceptance += recovery * max(0.0, recovered - acceptance)
        return count
