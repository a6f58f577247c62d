"""Speculation: guesses of the next tokens, verified in the step that computes them anyway.

A decode step reads all weights for one token a sequence. With drafts it computes the rows of the
guessed tokens in the same pass; the sampler, with the same seed and position, says what the token
is at each place. A guess that is right was computed one step early; after the first wrong one the
rest is thrown away. So tokens are the same with and without it, only the number of steps changes.

How many drafts: a row more is worth its time if it yields tokens at the rate of the step without:

    chance^i > caution * (row + guess) / step * expected tokens of the step

At one sequence on a memory-bound machine the right side is small; with many sequences, or where
arithmetic bounds the step, it comes near 1 and nothing is drafted. `step` and `row`, what the step
takes and one row more, are learnt (`step_time.py`), from prompts' steps before there are others;
`guess` is what the proposer itself takes for a token: nothing for n-grams, a draft model's step for
it. `chance` is learnt for each sequence, from drafts and from guesses that were not worth a row
(`guess_acceptance.py`).

All this rests on estimates; whether guessing pays at all is measured (`guess_gain.py`), and what it
may cost is bounded (`guess_account.py`).

Where a grammar leaves only one way to go on, that is the guess, and it is nearly always right;
other guesses are cut where the grammar does not allow them.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headrace.base.clock import Clock
from headrace.engine.guess_acceptance import GuessAcceptance, chance_max
from headrace.engine.guess_gain import GuessGain
from headrace.engine.sequence import Sequence
from headrace.engine.step_time import StepTime

caution = 1.05  # what is learnt is not certain
prompt_weight = 0.03  # of a step with a prompt's chunk, whose rows have no logits
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
    forced: set[Sequence] = field(default_factory=set)  # whose guesses are what a grammar forces
    accepted: int = 0
    looking_s: float = 0.0  # for guesses
    read_s: float = 0.0  # of it, by a draft model, for later guesses


class _Plan:
    """A step as far as it is planned: its rows, what it takes, the tokens that may be expected."""

    def __init__(self, time: StepTime, sequence_count: int, guess_s: float) -> None:
        self._time = time
        self._guess_s = guess_s  # what making a guess takes
        self._rows = sequence_count
        self._tokens = float(sequence_count)
        self._seconds = time.step_s(sequence_count)
        self._row_s = time.row_s(sequence_count)  # of one more; no less for those after it
        self._is_blind = not self._seconds

    def is_worth(self, chance: float) -> bool:
        """Whether a guess that is so likely right is worth a row more; yes if nothing is known."""
        more_s = self._row_s + self._guess_s
        return self._is_blind or chance * self._seconds > caution * more_s * self._tokens

    def take(self, chance: float, most: int) -> int:
        """Plan as many guesses in a row, each as likely right as that, as are worth their rows."""
        count, all_right = 0, chance
        while count < most and self.is_worth(all_right):
            self._seconds += self._row_s + self._guess_s
            self._rows += 1
            self._row_s = max(self._row_s, self._time.row_s(self._rows))
            self._tokens += all_right
            all_right *= chance
            count += 1
        return count


class Speculator:
    """Gives the decodes of a step their drafts, and learns from what became of them."""

    def __init__(self, proposer: Proposer, draft_max: int, clock: Clock) -> None:
        self._clock = clock
        self._proposer = proposer
        self._computing = proposer if isinstance(proposer, ComputingProposer) else None
        self._draft_max = draft_max
        self._time = StepTime()
        self._acceptance = GuessAcceptance()
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
        plan = _Plan(self._time, len(decodes), guess_s)
        for sequence in decodes:
            self._acceptance.settle(sequence)
            most = min(self._most(sequence), rows_left)
            if most > 0:
                drafts = self._drafts(sequence, plan, most, step)
                sequence.drafts = drafts[: extend(sequence, len(drafts))] if drafts else []
                rows_left -= len(sequence.drafts)
                step.has_guesses |= bool(sequence.drafts)

    @property
    def seconds_total(self) -> float:
        """What computing guesses took so far; 0 where they cost nothing."""
        return 0.0 if self._computing is None else self._computing.seconds_total

    def record_step(self, rows: int, seconds: float, *, only_decodes: bool = True) -> None:
        """Learn what a step cost; its drafts are recorded after it."""
        self._time.record(rows, seconds, 1.0 if only_decodes else prompt_weight)

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
        for place in range(accepted):
            self.accepted[place] += 1
        if self._step is None or sequence not in self._step.forced:
            self._acceptance.record(sequence, accepted, is_refused=accepted < drafted)
        sequence.drafts = []

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._acceptance.forget(sequence)
        if self._computing is not None:
            self._computing.forget(sequence)

    def _wanted(
        self, decodes: Rows[Sequence], rows_left: int, guess_s: float
    ) -> list[tuple[Sequence, int]]:
        """What to compute guesses for, as if all of them were made."""
        wanted = []
        plan = _Plan(self._time, len(decodes), guess_s)
        for sequence in decodes:
            chance, most = self._acceptance.chance(sequence), min(self._most(sequence), rows_left)
            if most <= 0 or not plan.is_worth(chance):
                continue
            if self._is_worth_reading(sequence, len(decodes)):
                count = plan.take(chance, most)
                wanted.append((sequence, count))
                rows_left -= count
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

    def _drafts(self, sequence: Sequence, plan: _Plan, most: int, step: _Step) -> list[int]:
        """The guesses of its next tokens that are worth their rows."""
        constraint, output = sequence.constraint, sequence.output
        if constraint is not None and plan.is_worth(chance_max):
            forced = _before_stop(sequence, constraint.forced_after(output, most))
            if forced:
                step.forced.add(sequence)
                return forced[: plan.take(chance_max, len(forced))]
        chance = self._acceptance.chance(sequence)
        if self._computing is not None and not plan.is_worth(chance):
            self._acceptance.recover(sequence)
            return []
        guesses = self._proposer.propose(sequence, most if plan.is_worth(chance) else 1)
        guesses = _before_stop(sequence, guesses)
        if constraint is not None and guesses:
            guesses = guesses[: constraint.allowed_count(output, guesses)]
        count = plan.take(chance, len(guesses))
        if guesses and not count:
            self._acceptance.foresee(sequence, guesses[0])
        return guesses[:count]

    def _most(self, sequence: Sequence) -> int:
        return min(self._draft_max, sequence.remaining_count - 1)


def _before_stop(sequence: Sequence, guesses: list[int]) -> list[int]:
    """Those before a token that would end the output: nothing after it is of use."""
    for place, token_id in enumerate(guesses):
        if token_id in sequence.stop_token_ids:
            return guesses[:place]
    return guesses
