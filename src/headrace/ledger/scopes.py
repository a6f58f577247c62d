"""The five scopes of a request, their limits, and what each scope uses now."""

from enum import StrEnum
from typing import NamedTuple

from headrace.ledger.windows import Calendar, CalendarUse, RollingUse
from headrace.spec.limits import CalendarPeriod, Limits, Period
from headrace.spec.settlements import platform_tenant_id


class ScopeKind(StrEnum):
    """Whose limit it is."""

    TENANT = "tenant"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    KEY_MODEL = "key_model"


class ScopeLimits(NamedTuple):
    """The limits of a request, by scope; None: that scope has none."""

    tenant: Limits | None = None
    project: Limits | None = None
    key: Limits | None = None
    model: Limits | None = None
    key_model: Limits | None = None


no_limits = ScopeLimits()
scope_kinds = tuple(ScopeKind)  # in the order of `ScopeLimits`
ScopeId = str


def scope_ids(tenant_id: str, project_id: str, key_id: str, model: str) -> tuple[ScopeId, ...]:
    """What the scopes of a request are kept under, in the order of `ScopeLimits`.

    Ids of resources have different prefixes; a model's name could look like one, hence the slash,
    which no id has. What the platform does on its own account is in no scope but its own."""
    if tenant_id == platform_tenant_id:
        return (tenant_id,) * len(scope_kinds)
    return (tenant_id, project_id, key_id, f"model/{model}", f"{key_id}/{model}")


class Need(NamedTuple):
    """The worst case of a request."""

    input_tokens: int
    output_tokens: int
    amount_nanousd: int


class ScopeState:
    """What one scope uses: this minute as admitted, what runs, its periods as settled."""

    __slots__ = (
        "day",
        "held_nanousd",
        "held_tokens",
        "input_tokens",
        "minute_held_input",
        "minute_held_output",
        "minute_s",
        "month",
        "output_tokens",
        "requests",
        "rolling",
        "running",
    )

    def __init__(self, calendar: Calendar) -> None:
        self.minute_s = calendar.minute_s
        self.requests = 0  # admitted this minute
        self.input_tokens = 0  # of those: used, or the worst case of what still runs
        self.output_tokens = 0
        self.minute_held_input = 0  # the part of these that is a worst case
        self.minute_held_output = 0
        self.running = 0
        self.held_tokens = 0  # the worst cases of what runs, whenever it was admitted
        self.held_nanousd = 0
        self.day = CalendarUse(calendar.day_s)
        self.month = CalendarUse(calendar.month_s)
        self.rolling: dict[int, RollingUse] = {}

    def enter(self, calendar: Calendar) -> None:
        """Start anew whatever has ended; nothing where a clock was set back."""
        if self.minute_s != calendar.minute_s:
            if self.minute_s < calendar.minute_s:
                self.requests = self.input_tokens = self.output_tokens = 0
                self.minute_held_input = self.minute_held_output = 0
            self.minute_s = calendar.minute_s
            self.day.enter(calendar.day_s)
            self.month.enter(calendar.month_s)

    def use(self, period: Period, now_s: float) -> CalendarUse | RollingUse:
        """What was settled in a period."""
        if isinstance(period, CalendarPeriod):
            return self.day if period is CalendarPeriod.DAY else self.month
        rolling = self.rolling.get(period)
        if rolling is None:
            return RollingUse(period)
        rolling.enter(now_s)
        return rolling

    def book(
        self, settle_s: float, calendar: Calendar, tokens: int, nanousd: int, rolling: set[int]
    ) -> None:
        """Count what a request used in the periods in which it was settled."""
        if settle_s >= calendar.day_s:
            self.day.tokens += tokens
            self.day.nanousd += nanousd
        if settle_s >= calendar.month_s:
            self.month.tokens += tokens
            self.month.nanousd += nanousd
        for period_s in rolling:
            self.book_rolling(period_s, settle_s, calendar.now_s, tokens, nanousd)

    def book_rolling(
        self, period_s: int, settle_s: float, now_s: float, tokens: int, nanousd: int
    ) -> None:
        """The same in one rolling period."""
        use = self.rolling.get(period_s)
        if use is None:
            use = self.rolling[period_s] = RollingUse(period_s)
        use.add(settle_s, now_s, tokens, nanousd)

    def is_idle(self, calendar: Calendar) -> bool:
        """Whether nothing of it counts any more, so that it may be forgotten."""
        if self.running or (self.requests and self.minute_s >= calendar.minute_s):
            return False
        self.enter(calendar)
        if self.requests or any(use.tokens or use.nanousd for use in (self.day, self.month)):
            return False
        for period_s, use in list(self.rolling.items()):
            use.enter(calendar.now_s)
            if use.is_empty:
                del self.rolling[period_s]
        return not self.rolling
