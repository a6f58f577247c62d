"""What guessing has cost so far, so that it never costs more than a known share of all time.

    debt = what steps with guesses took, and looking for guesses in the others
           - (1 + allowed_share) * what those steps' tokens would have taken without
           - allowed_share * what the steps without guesses took             never below 0

Guesses stop while the debt is more than `slack_steps` steps without take. So, whatever guesses cost
and however few come true, as long as the time of steps without guesses is known:

    total time <= (1 + allowed_share) * time without guesses + slack_steps steps + one step

That time is measured (`PlainSteps`) wherever a step has no guesses, and every 64 steps at least.
Between two measurements the smaller one counts: what was credited by a larger one is charged when
the next is there. For n sequences it is taken from steps of m ones as their mean * min(1, n / m),
which is the least that it can be where a step costs a constant and something a row.
"""

from dataclasses import dataclass, field

allowed_share = 0.01  # epsilon
slack_steps = 64  # that may be lost once: trials, and a draft model's first reading
forgetting = 0.9  # weight of the past at each step


@dataclass(slots=True)
class _Mean:
    """Seconds and sequences a step, of late."""

    weight: float = 0.0
    seconds: float = 0.0
    sequences: float = 0.0
    steps: int = 0

    def add(self, sequences: int, seconds: float) -> None:
        self.weight = self.weight * forgetting + 1
        self.seconds = self.seconds * forgetting + seconds
        self.sequences = self.sequences * forgetting + sequences
        self.steps += 1

    def step_s(self, sequences: int) -> float:
        """The least that a step of so many sequences takes."""
        share = min(1.0, sequences * self.weight / self.sequences)
        return self.seconds / self.weight * share


@dataclass(frozen=True, slots=True)
class _Credit:
    """What the tokens of a step with guesses were taken to cost without."""

    sequences: int
    tokens: int
    seconds: float

    def excess_s(self, known: _Mean) -> float:
        """How much more it is than by this measurement."""
        steps = self.tokens / self.sequences
        return max(0.0, self.seconds - known.step_s(self.sequences) * steps)


@dataclass(slots=True)
class PlainSteps:
    """What steps without guesses take, of about as many sequences; measured now and then."""

    steps_min: int  # of one measurement
    last_step: int = 0  # when it was last measured
    _known: _Mean | None = None
    _fresh: _Mean = field(default_factory=_Mean)  # of the measurement that is being made
    _unsettled: list[_Credit] = field(default_factory=list)  # since the last one

    @property
    def is_known(self) -> bool:
        """Whether there was a measurement."""
        return self._known is not None

    @property
    def unsettled_count(self) -> int:
        """Steps with guesses since the last measurement."""
        return len(self._unsettled)

    def step_s(self, sequences: int) -> float:
        """The least that a step of so many sequences takes; 0 if not yet known."""
        return 0.0 if self._known is None else self._known.step_s(sequences)

    def credit_s(self, sequences: int, tokens: int, seconds: float) -> float:
        """What these tokens take without guesses; `seconds`, which they took, if not yet known."""
        if self._known is not None:
            seconds = self._known.step_s(sequences) * tokens / sequences
        self._fresh = _Mean()
        self._unsettled.append(_Credit(sequences, tokens, seconds))
        return seconds

    def add(self, sequences: int, seconds: float, step: int) -> float:
        """Take in a step without guesses; by how much was credited too much before."""
        self._fresh.add(sequences, seconds)
        if self._fresh.steps < self.steps_min:
            return 0.0
        self._known, self.last_step = self._fresh, step
        unsettled, self._unsettled = self._unsettled, []
        return sum(credit.excess_s(self._fresh) for credit in unsettled)


class GuessAccount:
    """One debt for all steps, whatever the number of their sequences."""

    def __init__(self) -> None:
        self.debt_s = 0.0

    def allows(self, sequences: int, plain: PlainSteps) -> bool:
        """Whether a step may have guesses; before anything is known it may."""
        return not plain.is_known or self.debt_s <= slack_steps * plain.step_s(sequences)

    def record(self, seconds: float, credit_s: float) -> None:
        """A step took so long, and its tokens `credit_s` without guesses."""
        self.debt_s = max(0.0, self.debt_s + seconds - (1 + allowed_share) * credit_s)

    def charge(self, credit_s: float) -> None:
        """So much was credited too much."""
        self.debt_s += (1 + allowed_share) * credit_s
