"""Whether guessing pays, by the clock: steps with guesses against steps without.

The estimates that choose how many guesses to make (`speculation.py`) know what rows cost by their
number alone; where that is wrong, or a draft model costs more than it seems, this notices:

    guess    while a token takes no longer than without, which is known after 8 steps
    measure  2 steps without guesses after the first 8, and after each 64
    pause    when a token takes longer: 32 steps, then 8 as a trial; if it fails, twice as many

Steps are compared with those of about as many sequences: by powers of two. So that guessing costs
no more than a known share whatever happens, an account is kept over all steps (`guess_account.py`).
"""

from dataclasses import dataclass

from headrace.engine.guess_account import GuessAccount, PlainSteps

plain_steps_min = 2  # without guesses, to compare with
refresh_steps = 64  # with guesses, until others are measured again
stale_steps = 256  # of any kind, after which steps without guesses are measured anew
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
        self.measured = PlainSteps(plain_steps_min)
        self.plain_steps_due = plain_steps_due
        self.pause_left = 0
        self.pause_steps = pause_steps_min

    @property
    def allows(self) -> bool:
        return not self.plain_steps_due and not self.pause_left

    def record_plain(self, tokens: int, seconds: float) -> None:
        self.plain.add(tokens, seconds)
        self.plain_steps_due = max(0, self.plain_steps_due - 1)
        self.pause_left = max(0, self.pause_left - 1)

    def record_guessed(self, tokens: int, seconds: float) -> None:
        self.guessed.add(tokens, seconds)
        self._judge()
        unsettled = self.measured.unsettled_count
        if unsettled >= (refresh_steps if self.measured.is_known else trial_steps):
            self.plain_steps_due = plain_steps_min

    def _judge(self) -> None:
        limit_s = hopeless_share * self.plain.token_s
        if self.guessed.steps == hopeless_steps and 0 < limit_s < self.guessed.token_s:
            self._pause()
        elif self.guessed.steps < trial_steps or not self.plain.steps:
            return
        elif self.guessed.token_s > self.plain.token_s:
            self._pause()
        elif self.guessed.steps >= refresh_steps:
            self.pause_steps = pause_steps_min

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
        self._account = GuessAccount()
        self._steps = 0

    def allows(self, sequence_count: int) -> bool:
        """Whether the next step, of so many sequences, may have guesses."""
        bucket = self._bucket(sequence_count)
        measured = bucket.measured
        if measured.is_known and self._steps - measured.last_step > stale_steps:
            return False
        return bucket.allows and self._account.allows(sequence_count, measured)

    def saving_s(self, sequence_count: int) -> float | None:
        """What guessing saves of a token's time; None before it is known."""
        bucket = self._bucket(sequence_count)
        if not bucket.plain.steps or bucket.guessed.steps < trial_steps:
            return None
        return bucket.plain.token_s - bucket.guessed.token_s

    def record(
        self,
        sequence_count: int,
        tokens: int,
        seconds: float,
        *,
        has_guesses: bool,
        looking_s: float = 0.0,
        read_s: float = 0.0,
    ) -> None:
        """Take in a step: its tokens and its whole time, of which `looking_s` went into guesses.

        Of that, `read_s` went into reading sequences for later guesses: it is accounted for, and
        not held against these ones."""
        self._steps += 1
        bucket = self._bucket(sequence_count)
        if has_guesses:
            credit_s = bucket.measured.credit_s(sequence_count, tokens, seconds)
            self._account.record(seconds, credit_s)
            bucket.record_guessed(tokens, max(0.0, seconds - read_s))
            return
        plain_s = max(0.0, seconds - looking_s)
        self._account.record(seconds, plain_s)
        self._account.charge(bucket.measured.add(sequence_count, plain_s, self._steps))
        bucket.record_plain(tokens, plain_s)

    def _bucket(self, sequence_count: int) -> _Bucket:
        size = sequence_count.bit_length()
        if size not in self._buckets:
            self._buckets[size] = _Bucket(self._plain_steps_due)
        return self._buckets[size]
