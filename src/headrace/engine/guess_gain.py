"""Whether guessing pays, by the clock: seconds a token of steps with guesses against steps without.

The estimates that choose how many guesses to make (`speculation.py`) take a step's time for linear
in its rows; where that is wrong, or a draft model costs more than it seems, this notices:

    guess    while a token takes no longer than without, which is known after 8 steps
    measure  2 steps without guesses after the first 8, and after each 64
    pause    when a token takes longer: 32 steps, then 8 as a trial; if it fails, twice as many

Steps are compared with those of about as many sequences: by powers of two.
"""

from dataclasses import dataclass

plain_steps_min = 2  # without guesses, to compare with
refresh_steps = 64  # with guesses, until others are measured again
trial_steps = 8  # with guesses, before they are judged
hopeless_steps = 3  # after so many, a token that takes far longer ends a trial
hopeless_share = 1.2
pause_steps_min = 32
pause_steps_max = 1024
forgetting = 0.9  # weight of the past at each step


@dataclass(slots=True)
class _Rate:
    """Seconds a token, of late."""

    seconds: float = 0.0
    tokens: float = 0.0
    steps: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.seconds = self.seconds * forgetting + seconds
        self.tokens = self.tokens * forgetting + tokens
        self.steps += 1

    @property
    def token_s(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0


class _Bucket:
    """What is known of steps with about so many sequences."""

    def __init__(self, plain_steps_due: int) -> None:
        self.plain = _Rate()
        self.guessed = _Rate()
        self.plain_steps_due = plain_steps_due
        self.pause_left = 0
        self.pause_steps = pause_steps_min

    def allows(self) -> bool:
        """Whether the next step may have guesses."""
        return not self.plain_steps_due and not self.pause_left

    def record(self, tokens: int, seconds: float, *, has_guesses: bool) -> None:
        if not has_guesses:
            self.plain.add(tokens, seconds)
            self.plain_steps_due = max(0, self.plain_steps_due - 1)
            self.pause_left = max(0, self.pause_left - 1)
            return
        self.guessed.add(tokens, seconds)
        if self.guessed.steps == hopeless_steps and self._is_hopeless:
            self._pause()
        if self.guessed.steps < trial_steps:
            return
        if not self.plain.steps:
            self.plain_steps_due = plain_steps_min
        elif self.guessed.token_s > self.plain.token_s:
            self._pause()
        elif self.guessed.steps >= refresh_steps:
            self.pause_steps = pause_steps_min
            self.plain_steps_due = plain_steps_min
            self.guessed.steps = trial_steps

    @property
    def _is_hopeless(self) -> bool:
        limit_s = hopeless_share * self.plain.token_s
        return self.plain.steps > 0 and self.guessed.token_s > limit_s

    def _pause(self) -> None:
        self.pause_left = self.pause_steps
        self.pause_steps = min(2 * self.pause_steps, pause_steps_max)
        self.guessed = _Rate()


class GuessGain:
    """Decides step by step; sees only steps in which every sequence decodes."""

    def __init__(self, *, plain_first: bool = False) -> None:
        """`plain_first`: guesses that cost something wait until there is what to compare with."""
        self._plain_steps_due = plain_steps_min if plain_first else 0
        self._buckets: dict[int, _Bucket] = {}

    def allows(self, sequence_count: int) -> bool:
        """Whether the next step, of so many sequences, may have guesses."""
        return self._bucket(sequence_count).allows()

    def saving_s(self, sequence_count: int) -> float | None:
        """What guessing saves of a token's time; None before it is known."""
        bucket = self._bucket(sequence_count)
        if not bucket.plain.steps or bucket.guessed.steps < trial_steps:
            return None
        return bucket.plain.token_s - bucket.guessed.token_s

    def record(
        self, sequence_count: int, tokens: int, seconds: float, *, has_guesses: bool
    ) -> None:
        """Take in a step: its tokens, and its time with that of making the guesses."""
        self._bucket(sequence_count).record(tokens, seconds, has_guesses=has_guesses)

    def _bucket(self, sequence_count: int) -> _Bucket:
        size = sequence_count.bit_length()
        if size not in self._buckets:
            self._buckets[size] = _Bucket(self._plain_steps_due)
        return self._buckets[size]
