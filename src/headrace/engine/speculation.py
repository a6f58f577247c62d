"""Speculation: guesses of the next tokens, verified in the step that computes them anyway.

A decode step reads all weights for one token a sequence. With drafts it computes the rows of the
guessed tokens in the same pass; the sampler, with the same seed and position, says what the token
is at each place. A guess that is right was computed one step early; after the first wrong one the
rest is thrown away. So tokens are the same with and without it, only the number of steps changes.

How many drafts: a row more is worth its time if it yields tokens at the rate of the step without:

    acceptance^i > (row + guess) / (base + rows * row) * expected tokens of the step

At one sequence on a memory-bound machine the right side is small; with many sequences, or where
arithmetic bounds the step, it comes near 1 and nothing is drafted. `base` and `row` are learnt
(`step_time.py`); `guess` is what the proposer itself takes for a token: nothing for n-grams, a
draft model's step for it. `acceptance` is learnt for each sequence, and creeps up while nothing is
drafted, so that it is tried again.

All this rests on estimates; whether guessing pays at all is measured (`guess_gain.py`), and what it
may cost is bounded (`guess_account.py`).

Where a grammar leaves only one way to go on, that is the guess, and it is nearly always right;
other guesses are cut where the grammar does not allow them.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from math import log
from typing import Protocol, runtime_checkable

from headrace.base.clock import Clock
from headrace.engine.guess_gain import GuessGain
from headrace.engine.sequence import Sequence
from headrace.engine.step_time import StepTime

learning_rate = 0.15
acceptance_max = 0.98
acceptance_min = 0.02
recovery = 0.02  # share of the way back to `recovered` at each step without a draft
recovered = 0.5
likely_output_tokens = 256  # of a request that may have more
reading_share_max = 0.5  # of what guessing is likely to save


class Proposer(Protocol):
    """Guesses what comes next, cheaply; being wrong costs time, never correctness."""

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """Up to `count` tokens that may follow the sequence's own."""
        ...


@runtime_checkable
class ComputingProposer(Protocol):
    """A proposer that computes the guesses of a step's sequences together, before it is asked."""

    @property
    def seconds_total(self) -> float:
        """What all its computing took so far."""
        ...

    def prepare(self, wanted: Rows[tuple[Sequence, int]]) -> float:
        """Compute up to so many guesses for each of these sequences; the seconds it took.

        Reading a sequence for the first time is not counted: it pays off later."""
        ...

    @property
    def read_s(self) -> float:
        """What a token takes that is read for the first time; 0 if not yet known."""
        ...

    def unread(self, sequence: Sequence) -> int:
        """Tokens of the sequence that are to be computed before its first guess."""
        ...

    def token_s(self, sequence_count: int) -> float:
        """What one guess takes where so many sequences get one together; 0 if not yet known."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free what is kept of a sequence that has ended."""
        ...


class Extend(Protocol):
    """Makes room for drafts."""

    def __call__(self, sequence: Sequence, count: int) -> int:
        """Hold blocks for `count` more tokens; for how many there is room."""
        ...


@dataclass(slots=True)
class _Step:
    """What a step comes to."""

    sequences: int
    has_guesses: bool = False
    accepted: int = 0
    looking_s: float = 0.0  # for guesses
    read_s: float = 0.0  # of it, by a draft model, for later guesses


class Speculator:
    """Gives the decodes of a step their drafts, and learns from what became of them."""

    def __init__(self, proposer: Proposer, draft_max: int, clock: Clock) -> None:
        self._clock = clock
        self._proposer = proposer
        self._computing = proposer if isinstance(proposer, ComputingProposer) else None
        self._draft_max = draft_max
        self._time = StepTime()  # of steps without a prompt's chunk
        self._gain = GuessGain(plain_first=self._computing is not None)
        self._step: _Step | None = None  # that was scheduled last, if all sequences decode in it
        self.drafts_total = 0
        self.accepted = [0] * draft_max  # by place in the draft, as the next one
        self.drafted = [0] * draft_max

    def draft(self, decodes: Rows[Sequence], rows_left: int, extend: Extend) -> None:
        """Give these sequences drafts, `rows_left` at most in all."""
        self._step = step = _Step(len(decodes))
        if decodes and self._gain.allows(len(decodes)):
            start_s = self._clock.monotonic_s()
            self._look(decodes, rows_left, extend, step)
            step.looking_s = self._clock.monotonic_s() - start_s

    def _look(self, decodes: Rows[Sequence], rows_left: int, extend: Extend, step: _Step) -> None:
        guess_s = 0.0
        if self._computing is not None:
            guess_s = self._computing.token_s(len(decodes))
            wanted = self._wanted(decodes, rows_left, guess_s)
            before_s = self._computing.seconds_total
            own_s = self._computing.prepare(wanted)
            step.read_s = self._computing.seconds_total - before_s - own_s
        rows = expected = float(len(decodes))
        for sequence in decodes:
            worth = self._least_acceptance(rows, expected, guess_s)
            drafts = self._guesses(sequence, worth, rows_left)
            if not drafts:
                continue
            sequence.drafts = drafts[: extend(sequence, len(drafts))]
            count = len(sequence.drafts)
            step.has_guesses |= count > 0
            rows_left -= count
            rows += count
            expected += _expected(sequence.draft_acceptance, count)

    @property
    def seconds_total(self) -> float:
        """What computing guesses took so far; 0 where they cost nothing."""
        return 0.0 if self._computing is None else self._computing.seconds_total

    def record_step(self, rows: int, seconds: float) -> None:
        """Learn what a step without a prompt's chunk cost; its drafts are recorded after it."""
        self._time.record(rows, seconds)

    def end_step(self, seconds: float) -> None:
        """All drafts of a step without a prompt's chunk are recorded; its whole time, with guesses.

        What looking for them took is part of it, n-grams' included."""
        step, self._step = self._step, None
        if step is not None and step.sequences:
            self._gain.record(
                step.sequences,
                step.sequences + step.accepted,
                seconds,
                has_guesses=step.has_guesses,
                looking_s=step.looking_s,
                read_s=step.read_s,
            )

    def record_drafts(self, sequence: Sequence, accepted: int) -> None:
        """Learn how many of a sequence's drafts were right, and forget them."""
        drafted = len(sequence.drafts)
        self.drafts_total += 1
        sequence.accepted_drafts += accepted
        sequence.refused_drafts += drafted - accepted
        if self._step is not None:
            self._step.accepted += accepted
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

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        if self._computing is not None:
            self._computing.forget(sequence)

    def _wanted(
        self, decodes: Rows[Sequence], rows_left: int, guess_s: float
    ) -> list[tuple[Sequence, int]]:
        """What to compute guesses for, as if all of them were made."""
        wanted = []
        rows = expected = float(len(decodes))
        for sequence in decodes:
            worth = self._least_acceptance(rows, expected, guess_s)
            most = min(self._most(sequence), rows_left)
            count = _count_worth(sequence.draft_acceptance, worth, most)
            if count > 0 and self._is_worth_reading(sequence, len(decodes)):
                wanted.append((sequence, count))
                rows_left -= count
                rows += count
                expected += _expected(sequence.draft_acceptance, count)
                if not guess_s:  # what a guess takes is to be known before others are read
                    break
        return wanted

    def _is_worth_reading(self, sequence: Sequence, sequence_count: int) -> bool:
        """Whether enough output may come to pay for what is unread of it."""
        assert self._computing is not None, "n-grams read nothing"
        unread = self._computing.unread(sequence)
        to_come = min(sequence.remaining_count, likely_output_tokens)
        saving_s, read_s = self._gain.saving_s(sequence_count), self._computing.read_s
        if saving_s is None or not read_s:
            return unread <= to_come
        return unread * read_s <= saving_s * to_come * reading_share_max

    def _guesses(self, sequence: Sequence, worth: float, rows_left: int) -> list[int]:
        constraint, output = sequence.constraint, sequence.output
        most = min(self._most(sequence), rows_left)
        if constraint is not None:
            count = _count_worth(acceptance_max, worth, most)
            forced = constraint.forced_after(output, count) if count > 0 else []
            if forced:
                return _before_stop(sequence, forced)
        count = _count_worth(sequence.draft_acceptance, worth, most)
        if count <= 0:
            lacking = max(0.0, recovered - sequence.draft_acceptance)
            sequence.draft_acceptance += recovery * lacking
            return []
        guesses = _before_stop(sequence, self._proposer.propose(sequence, count))
        if constraint is None or not guesses:
            return guesses
        return guesses[: constraint.allowed_count(output, guesses)]

    def _least_acceptance(self, rows: float, expected: float, guess_s: float) -> float:
        """The chance from which on a draft is worth its row."""
        if not self._time.is_known:
            return 0.0
        row_s = self._time.row_s
        return (row_s + guess_s) * expected / (self._time.base_s + rows * row_s)

    def _most(self, sequence: Sequence) -> int:
        return min(self._draft_max, sequence.remaining_count - 1)


def _count_worth(acceptance: float, worth: float, most: int) -> int:
    """How many guesses in a row are each worth their place."""
    if most <= 0 or worth <= acceptance_min**most:
        return most
    return min(most, int(log(worth) / log(acceptance))) if worth < 1 else 0


def _expected(acceptance: float, count: int) -> float:
    """How many of the guesses will be right."""
    return sum(acceptance**place for place in range(1, count + 1))


def _before_stop(sequence: Sequence, guesses: list[int]) -> list[int]:
    """Those before a token that would end the output: nothing after it is of use."""
    for place, token_id in enumerate(guesses):
        if token_id in sequence.stop_token_ids:
            return guesses[:place]
    return guesses
