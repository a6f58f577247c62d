"""Where time is cut for limits, and what was used inside a period.

A minute, a day and a month are those of the calendar in UTC: they start empty, and 100% of a limit
can be used in each. A rolling period of P seconds is counted in 64 buckets of P/64; a bucket counts
until the last moment of it is older than P. So no span of P seconds ever holds more than the limit,
and at least 64/65 (98.5%) of it can be used again and again.
"""

from datetime import UTC, datetime

minute_s = 60
day_s = 86_400
jitter_s_max = 2.0  # that time may go back by without being a clock that was set back
buckets_per_period = 64


def forgotten_window(number: int) -> int:
    """The first bucket in which a rolling period's bucket counts no more."""
    return number + buckets_per_period + 1


class Calendar:
    """The minute, day and month that now belongs to.

    They go back only with a clock that was set back. What counts by then goes on counting."""

    __slots__ = (
        "day_end_s",
        "day_s",
        "minute_end_s",
        "minute_s",
        "month_end_s",
        "month_s",
        "now_s",
        "set_backs",
    )

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.set_backs = 0  # how often it went back; what is the same minute again is another one
        self._cut()

    def advance(self, now_s: float) -> None:
        """Move to now; cheap within a minute."""
        if now_s > self.now_s:
            self.now_s = now_s
            if now_s >= self.minute_end_s:
                self._cut()
        elif now_s < self.now_s - jitter_s_max:
            self.now_s = now_s
            self.set_backs += 1
            self._cut()

    def _cut(self) -> None:
        whole_s = int(self.now_s)
        self.minute_s = whole_s - whole_s % minute_s
        self.minute_end_s = self.minute_s + minute_s
        self.day_s = whole_s - whole_s % day_s
        self.day_end_s = self.day_s + day_s
        first = datetime.fromtimestamp(self.day_s, UTC).replace(day=1)
        year, month = divmod(first.year * 12 + first.month, 12)
        self.month_s = int(first.timestamp())
        self.month_end_s = int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp())


class CalendarUse:
    """What was settled in one calendar period, and in the one before it that anything was in."""

    __slots__ = ("_before", "nanousd", "start_s", "tokens")

    def __init__(self, start_s: int) -> None:
        self.start_s = start_s
        self.tokens = 0
        self.nanousd = 0
        self._before: tuple[int, int, int] | None = None  # start, tokens, nanousd

    def enter(self, start_s: int) -> None:
        """Start anew in a later period; in an earlier one, by a clock that was set back, go on
        with what was settled there, and with what was settled since."""
        if start_s > self.start_s:
            if self.tokens or self.nanousd:
                self._before = (self.start_s, self.tokens, self.nanousd)
            self.tokens = self.nanousd = 0
        elif start_s < self.start_s and self._before and self._before[0] >= start_s:
            self.tokens += self._before[1]
            self.nanousd += self._before[2]
            self._before = None
        self.start_s = start_s


class RollingUse:
    """What was settled in the last `period_s` seconds, and a bucket more at most."""

    __slots__ = ("_buckets", "_period_s", "nanousd", "tokens")

    def __init__(self, period_s: int) -> None:
        self._period_s = period_s
        self._buckets: dict[int, tuple[int, int]] = {}  # by number, in order of time
        self.tokens = 0
        self.nanousd = 0

    def add(self, settle_s: float, now_s: float, tokens: int, nanousd: int) -> None:
        """Count a use that was settled at `settle_s`."""
        self.enter(now_s)
        number = self._number(settle_s)
        if number < self._number(now_s) - buckets_per_period:
            return
        held_tokens, held_nanousd = self._buckets.get(number, (0, 0))
        self._buckets[number] = (held_tokens + tokens, held_nanousd + nanousd)
        self.tokens += tokens
        self.nanousd += nanousd

    def enter(self, now_s: float) -> None:
        """Forget the buckets that are wholly older than the period.

        What was settled later than now, by a clock that was set back, counts as settled now."""
        present = self._number(now_s)
        for number in [number for number in self._buckets if number > present]:
            tokens, nanousd = self._buckets.pop(number)
            held_tokens, held_nanousd = self._buckets.get(present, (0, 0))
            self._buckets[present] = (held_tokens + tokens, held_nanousd + nanousd)
        oldest = present - buckets_per_period
        for number in [number for number in self._buckets if number < oldest]:
            tokens, nanousd = self._buckets.pop(number)
            self.tokens -= tokens
            self.nanousd -= nanousd

    def seconds_until_free(self, now_s: float, tokens: int, nanousd: int) -> float:
        """How long until so much of the use is forgotten."""
        end = self._number(now_s)
        for number in sorted(self._buckets):
            if tokens <= 0 and nanousd <= 0:
                break
            tokens -= self._buckets[number][0]
            nanousd -= self._buckets[number][1]
            end = forgotten_window(number)
        return max(0.0, end * self._period_s / buckets_per_period - now_s)

    @property
    def is_empty(self) -> bool:
        """Whether nothing counts any more."""
        return not self._buckets

    def _number(self, time_s: float) -> int:
        return int(time_s * buckets_per_period // self._period_s)
