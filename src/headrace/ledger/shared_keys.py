"""The limits of a request as shared stores know them: keys, kinds, windows, amounts."""

from enum import Enum
from typing import NamedTuple

from headrace.ledger.scopes import Need, ScopeId, ScopeKind, ScopeLimits, scope_kinds
from headrace.ledger.windows import Calendar, buckets_per_period
from headrace.spec.limits import CalendarPeriod, Limits, Period
from headrace.storage.lease_exchange import LimitKind

credit_name = "credit"
minute_name = "minute"
kept_minutes_s = 180  # of past windows, for gateways with slow clocks
kept_days_s = 63 * 86_400


class Measure(Enum):
    """What of a request a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT = "input"
    OUTPUT = "output"
    SLOTS = "slots"
    NANOUSD = "nanousd"

    def of(self, need: Need) -> int:
        """The amount."""
        if self is Measure.TOKENS:
            return need.input_tokens + need.output_tokens
        if self is Measure.INPUT:
            return need.input_tokens
        if self is Measure.OUTPUT:
            return need.output_tokens
        return need.amount_nanousd if self is Measure.NANOUSD else 1


class KeyedLimit(NamedTuple):
    """One limit of one scope."""

    key: str
    scope: ScopeKind
    name: str  # as people set it
    measure: Measure
    capacity: int
    kind: LimitKind
    period: Period | None  # None: the minute, or none at all
    tenant_id: str = ""  # of credit

    @property
    def is_of_minute(self) -> bool:
        """Whether it counts in the minute of admission."""
        return self.kind is LimitKind.CALENDAR and self.period is None

    @property
    def scope_id(self) -> ScopeId:
        """Whose limit it is."""
        return self.key.rsplit("|", 1 if self.kind in (LimitKind.SLOTS, LimitKind.CREDIT) else 2)[0]

    @property
    def expires(self) -> bool:
        """Whether a silent gateway's lease of it is forgotten."""
        return self.is_of_minute or self.kind is LimitKind.SLOTS

    def window(self, calendar: Calendar) -> int:
        """The present window: its start in seconds, or a bucket's number."""
        if isinstance(self.period, int):
            return int(calendar.now_s * buckets_per_period // self.period)
        if self.period is None:
            return calendar.minute_s
        return calendar.day_s if self.period is CalendarPeriod.DAY else calendar.month_s

    def oldest_window(self, calendar: Calendar) -> int:
        """The oldest that counts."""
        window = self.window(calendar)
        return window - buckets_per_period if self.kind is LimitKind.ROLLING else window

    def kept_since(self, calendar: Calendar) -> int:
        """The oldest that anybody may still ask about."""
        oldest = self.oldest_window(calendar)
        if self.kind is LimitKind.ROLLING:
            return oldest - 1
        return oldest - (kept_minutes_s if self.period is None else kept_days_s)


def keyed_limits(ids: tuple[ScopeId, ...], limits: ScopeLimits) -> list[KeyedLimit]:
    """Every hard limit of a request's scopes."""
    return [
        found
        for kind, scope_id, own in zip(scope_kinds, ids, limits, strict=True)
        if own is not None and not own.alert_only
        for found in limits_of_scope(kind, scope_id, own)
    ]


def limits_of_scope(scope: ScopeKind, scope_id: ScopeId, own: Limits) -> list[KeyedLimit]:
    """The limits of one scope."""
    minute = (
        ("requests_per_minute", Measure.REQUESTS, own.requests_per_minute),
        ("tokens_per_minute", Measure.TOKENS, own.tokens_per_minute),
        ("input_tokens_per_minute", Measure.INPUT, own.input_tokens_per_minute),
        ("output_tokens_per_minute", Measure.OUTPUT, own.output_tokens_per_minute),
    )
    found = [
        KeyedLimit(
            f"{scope_id}|{measure.value}|{minute_name}",
            scope,
            name,
            measure,
            limit,
            LimitKind.CALENDAR,
            None,
        )
        for name, measure, limit in minute
        if limit is not None
    ]
    if own.concurrent_requests is not None:
        found.append(
            KeyedLimit(
                f"{scope_id}|slots",
                scope,
                "concurrent_requests",
                Measure.SLOTS,
                own.concurrent_requests,
                LimitKind.SLOTS,
                None,
            )
        )
    periods = (
        ("tokens_per_period", Measure.TOKENS, own.tokens_per_period, own.period),
        ("budget_nanousd", Measure.NANOUSD, own.budget_nanousd, own.budget_period),
    )
    for name, measure, limit, period in periods:
        if limit is not None:
            kind = LimitKind.ROLLING if isinstance(period, int) else LimitKind.CALENDAR
            key = f"{scope_id}|{measure.value}|{period}"
            found.append(KeyedLimit(key, scope, name, measure, limit, kind, period))
    return found


def credit_limit(tenant_id: str, floor_nanousd: int) -> KeyedLimit:
    """A tenant's prepaid credit, which is leased like a limit."""
    return KeyedLimit(
        f"{tenant_id}|{credit_name}",
        ScopeKind.TENANT,
        credit_name,
        Measure.NANOUSD,
        -floor_nanousd,
        LimitKind.CREDIT,
        None,
        tenant_id,
    )


def limit_of_key(key: str) -> KeyedLimit:
    """What a key says of its limit; capacity, scope's kind and name are not in it.

    The scope comes first, since a model's name may hold anything."""
    if key.endswith(f"|{credit_name}"):
        return credit_limit(key.removesuffix(f"|{credit_name}"), 0)
    if key.endswith(f"|{Measure.SLOTS.value}"):
        return KeyedLimit(key, ScopeKind.KEY, "", Measure.SLOTS, 0, LimitKind.SLOTS, None)
    _, measure, window = key.rsplit("|", 2)
    period: Period | None = None
    if window != minute_name:
        period = int(window) if window.isdigit() else CalendarPeriod(window)
    kind = LimitKind.ROLLING if isinstance(period, int) else LimitKind.CALENDAR
    return KeyedLimit(key, ScopeKind.KEY, "", Measure(measure), 0, kind, period)
