"""What the ledger says was used in the present minute, day, month and rolling periods.

A gateway reads it once when it starts, before it posts anything itself; what its journal has and
the ledger has not comes after it, by `Limiter.restore`. So no restart gives a budget anew.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from headrace.ledger.scopes import ScopeId, scope_ids
from headrace.ledger.windows import Calendar, buckets_per_period
from headrace.spec.limits import CalendarPeriod, Period
from headrace.storage import UsageRow

groups = ("tenant", "project", "key", "model")


class UsageReader(Protocol):
    """The part of `storage.LedgerStore` that history needs."""

    def usage(
        self, group_by: Sequence[str] = (), since: float | None = None, until: float | None = None
    ) -> list[UsageRow]:
        """Sums of settlements in `[since, until)`."""
        ...


class PastUse(NamedTuple):
    """What one tenant, project, key and model together used since a moment."""

    period: Period | None  # None: the present minute
    since_s: float
    ids: tuple[ScopeId, ...]
    request_count: int
    input_tokens: int
    output_tokens: int
    nanousd: int


def read_history(
    ledger: UsageReader, now_s: float, rolling_periods_s: Iterable[int] = ()
) -> list[PastUse]:
    """Everything that still counts. A rolling period costs 65 reads, a bucket each."""
    calendar = Calendar(now_s)
    past = past_uses(ledger, None, calendar.minute_s, None)
    past += past_uses(ledger, CalendarPeriod.DAY, calendar.day_s, None)
    past += past_uses(ledger, CalendarPeriod.MONTH, calendar.month_s, None)
    for period_s in sorted(set(rolling_periods_s)):
        last = int(now_s * buckets_per_period // period_s)
        for number in range(last - buckets_per_period, last + 1):
            start_s = number * period_s / buckets_per_period
            end_s = (number + 1) * period_s / buckets_per_period
            past += past_uses(ledger, period_s, start_s, end_s)
    return past


def past_uses(
    ledger: UsageReader, period: Period | None, since_s: float, until_s: float | None
) -> list[PastUse]:
    """The rows of one span."""
    return [
        PastUse(
            period=period,
            since_s=since_s,
            ids=scope_ids(
                row.tenant_id or "", row.project_id or "", row.key_id or "", row.model or ""
            ),
            request_count=row.requests,
            input_tokens=row.prompt_tokens,
            output_tokens=row.completion_tokens,
            nanousd=row.amount_nanousd,
        )
        for row in ledger.usage(groups, since_s, until_s)
    ]
