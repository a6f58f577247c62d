"""What a tenant, project, key or model may use at most; every limit is optional.

`docs/concepts/limits.md` says how each counts. None means no such limit, 0 means nothing at all.
"""

from enum import StrEnum

import msgspec

limit_max = 2**60  # leaves room to add two of them inside 64 bits
rolling_period_s_min = 60
rolling_period_s_max = 366 * 86_400


class CalendarPeriod(StrEnum):
    """A period that starts anew at a moment of the calendar, in UTC."""

    DAY = "day"
    MONTH = "month"


Period = CalendarPeriod | int  # a number is a rolling period in seconds


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one scope; a request is admitted if every limit of every scope allows it."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # input and output together
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_period: int | None = None
    period: Period = CalendarPeriod.DAY  # of `tokens_per_period`
    budget_nanousd: int | None = None
    budget_period: Period = CalendarPeriod.DAY
    alert_only: bool = False  # counted and shown, and nothing is refused

    def __post_init__(self) -> None:
        for name in limit_names:
            value: int | None = getattr(self, name)
            if value is not None and not 0 <= value <= limit_max:
                raise ValueError(f"{name} must be 0 to {limit_max}, not {value}")
        for period in (self.period, self.budget_period):
            if isinstance(period, int) and not (
                rolling_period_s_min <= period <= rolling_period_s_max
            ):
                raise ValueError(
                    f"a rolling period has {rolling_period_s_min} to {rolling_period_s_max} "
                    f"seconds, not {period}"
                )

    @property
    def rolling_periods_s(self) -> tuple[int, ...]:
        """The rolling periods that these limits count in."""
        wanted = (
            (self.tokens_per_period, self.period),
            (self.budget_nanousd, self.budget_period),
        )
        return tuple(
            period for limit, period in wanted if limit is not None and isinstance(period, int)
        )


limit_names = (
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "concurrent_requests",
    "tokens_per_period",
    "budget_nanousd",
)
