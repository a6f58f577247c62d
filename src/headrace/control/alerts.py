"""Which alerts are due, from limits and what was used; a pure function of both.

An alert is the same occasion however often it is found due: scope, limit, period, threshold. So it
is told once, whichever process notices it, and again when a period starts anew or a limit changes.

A hard limit refuses what might go over it, so the last few percent of it are seldom used: from 97%
on its requests meet refusals, and that counts as all of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from headrace.base.money import format_usd
from headrace.spec.events import EventType
from headrace.spec.limits import CalendarPeriod, Limits, Period
from headrace.spec.tenancy import Tenant

thresholds_percent = (50, 80, 100)
exhausted_percent = 97  # of a hard limit
day_s = 86_400


class Use(NamedTuple):
    """What was used in a period."""

    tokens: int = 0
    amount_nanousd: int = 0


@dataclass(frozen=True, slots=True)
class LimitedScope:
    """Something that has limits."""

    kind: str  # tenant, project, key, model, key_model
    id: str  # for key_model: the key's id and the model's name
    name: str
    tenant_id: str  # empty for a model, which is of no tenant
    limits: Limits

    @property
    def first_id(self) -> str:
        """Its id; of a key's model the key's. Names of models may have colons of their own."""
        return self.id.partition(":")[0] if self.kind == "key_model" else self.id


class PeriodUse(NamedTuple):
    """A period as it is asked of the ledger: of which kind of scope, and since when."""

    scope_kind: str
    start_s: float


class Quota(NamedTuple):
    """One limit of a period."""

    type: EventType
    name: str
    limit: int
    period: Period


@dataclass(frozen=True, slots=True)
class DueAlert:
    """One alert that is to be told if its occasion is new."""

    type: EventType
    tenant_id: str
    occasion: str
    data: Mapping[str, object]


def period_start_s(period: Period, now_s: float) -> float:
    """When the present period began; a rolling one reaches back from now."""
    if isinstance(period, int):
        return now_s - period
    day_start_s = now_s - now_s % day_s
    if period is CalendarPeriod.DAY:
        return day_start_s
    return datetime.fromtimestamp(day_start_s, UTC).replace(day=1).timestamp()


def questions(scopes: Iterable[LimitedScope], now_s: float) -> set[PeriodUse]:
    """What has to be asked of the ledger."""
    return {
        PeriodUse(scope.kind, period_start_s(quota.period, now_s))
        for scope in scopes
        for quota in _quotas(scope.limits)
    }


def due_alerts(
    scopes: Sequence[LimitedScope],
    uses: Mapping[PeriodUse, Mapping[str, Use]],  # by scope id
    now_s: float,
) -> list[DueAlert]:
    """Every alert that the uses call for, whether or not it was told before."""
    return [
        alert
        for scope in scopes
        for quota in _quotas(scope.limits)
        for alert in _of_quota(scope, quota, uses, now_s)
    ]


def _quotas(limits: Limits) -> Iterator[Quota]:
    if limits.budget_nanousd is not None:
        yield Quota(
            EventType.BUDGET_THRESHOLD, "budget", limits.budget_nanousd, limits.budget_period
        )
    if limits.tokens_per_period is not None:
        yield Quota(EventType.TOKENS_THRESHOLD, "tokens", limits.tokens_per_period, limits.period)


def _of_quota(
    scope: LimitedScope,
    quota: Quota,
    uses: Mapping[PeriodUse, Mapping[str, Use]],
    now_s: float,
) -> Iterator[DueAlert]:
    type_, name, limit, period = quota
    start_s = period_start_s(period, now_s)
    use = uses.get(PeriodUse(scope.kind, start_s), {}).get(scope.id, Use())
    used = use.amount_nanousd if type_ is EventType.BUDGET_THRESHOLD else use.tokens
    # A rolling period never begins anew; once in its length is how often it is worth telling.
    turn = int(now_s // period) if isinstance(period, int) else int(start_s)
    for percent in thresholds_percent:
        share = percent
        if percent == 100 and not scope.limits.alert_only:
            share = exhausted_percent
        if limit == 0 or used * 100 < limit * share:
            continue
        yield DueAlert(
            type=type_,
            tenant_id=scope.tenant_id,
            occasion=f"{name}:{scope.kind}:{scope.id}:{period}:{turn}:{limit}:{percent}",
            data={
                "scope": scope.kind,
                "id": scope.id,
                "name": scope.name,
                "threshold_percent": percent,
                "period": period if isinstance(period, int) else period.value,
                "period_start_time": datetime.fromtimestamp(start_s, UTC).isoformat(),
                "alert_only": scope.limits.alert_only,
                **_amounts(type_, limit, used),
            },
        )


def _amounts(type_: EventType, limit: int, used: int) -> dict[str, object]:
    if type_ is EventType.BUDGET_THRESHOLD:
        return {
            "limit_nanousd": limit,
            "used_nanousd": used,
            "limit_usd": format_usd(limit),
            "used_usd": format_usd(used),
        }
    return {"limit_tokens": limit, "used_tokens": used}


def low_credits(
    tenants: Iterable[Tenant],
    balances_nanousd: Mapping[str, int],
    last_day: Mapping[str, Use],
    now_s: float,
) -> list[DueAlert]:
    """Prepaid tenants whose credit does not last another day like the last one; told once a day."""
    found = []
    for tenant in tenants:
        spent = last_day.get(tenant.id, Use()).amount_nanousd
        if tenant.credit_floor_nanousd is None or spent == 0:
            continue
        left = balances_nanousd.get(tenant.id, 0) - tenant.credit_floor_nanousd
        if left >= spent:
            continue
        found.append(
            DueAlert(
                type=EventType.CREDIT_LOW,
                tenant_id=tenant.id,
                occasion=credit_occasion(tenant, now_s),
                data={
                    "name": tenant.name,
                    "left_nanousd": left,
                    "left_usd": format_usd(left),
                    "spent_last_day_nanousd": spent,
                    "spent_last_day_usd": format_usd(spent),
                },
            )
        )
    return found


def credit_occasion(tenant: Tenant, now_s: float) -> str:
    """A prepaid tenant's day."""
    return f"credit:{tenant.id}:{int(now_s // day_s)}"
