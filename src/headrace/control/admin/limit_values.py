"""Limits as the API carries them: names for people, dollars as text."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.money import parse_usd
from headrace.control.admin.values import Dollars, Money, RequestBody
from headrace.spec.limits import (
    CalendarPeriod,
    Limits,
    Period,
    limit_max,
    limit_names,
    rolling_period_s_max,
    rolling_period_s_min,
)

Count = Annotated[int, Field(ge=0, le=limit_max)]
RollingSeconds = Annotated[int, Field(ge=rolling_period_s_min, le=rolling_period_s_max)]
PeriodValue = Literal["day", "month"] | RollingSeconds


class LimitsBody(RequestBody):
    """What may be used at most; null: no such limit. Periods are of the calendar in UTC, or so
    many seconds, rolling."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    input_tokens_per_minute: Count | None = None
    output_tokens_per_minute: Count | None = None
    concurrent_requests: Count | None = None
    tokens_per_period: Count | None = None
    period: PeriodValue = "day"
    budget_usd: Dollars | None = None
    budget_period: PeriodValue = "day"
    alert_only: bool = False

    def limits(self) -> Limits:
        """The same as a gateway enforces it; InvalidRequest for a budget below 0."""
        budget_nanousd = None if self.budget_usd is None else parse_usd(self.budget_usd)
        if budget_nanousd is not None and budget_nanousd < 0:
            raise InvalidRequest("budget_usd: a budget is at least 0 dollars", param="budget_usd")
        return Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            input_tokens_per_minute=self.input_tokens_per_minute,
            output_tokens_per_minute=self.output_tokens_per_minute,
            concurrent_requests=self.concurrent_requests,
            tokens_per_period=self.tokens_per_period,
            period=_period(self.period),
            budget_nanousd=budget_nanousd,
            budget_period=_period(self.budget_period),
            alert_only=self.alert_only,
        )


class LimitsView(BaseModel):
    """Limits as they are."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    input_tokens_per_minute: int | None
    output_tokens_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_period: int | None
    period: str | int
    budget: Money | None
    budget_period: str | int
    alert_only: bool


def limits_of(body: LimitsBody | None) -> Limits | None:
    """The limits that a body asks for, if it asks for any."""
    limits = Limits() if body is None else body.limits()
    has_any = any(getattr(limits, name) is not None for name in limit_names)
    return limits if has_any else None


def limits_view(limits: Limits | None) -> LimitsView | None:
    """The limits of a resource, if it has any."""
    return None if limits is None else view_of(limits)


def view_of(limits: Limits) -> LimitsView:
    """Limits as they are shown."""
    budget = limits.budget_nanousd
    return LimitsView(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        input_tokens_per_minute=limits.input_tokens_per_minute,
        output_tokens_per_minute=limits.output_tokens_per_minute,
        concurrent_requests=limits.concurrent_requests,
        tokens_per_period=limits.tokens_per_period,
        period=_period_value(limits.period),
        budget=None if budget is None else Money.of(budget),
        budget_period=_period_value(limits.budget_period),
        alert_only=limits.alert_only,
    )


def _period(value: str | int) -> Period:
    return value if isinstance(value, int) else CalendarPeriod(value)


def _period_value(period: Period) -> str | int:
    return period.value if isinstance(period, CalendarPeriod) else period
