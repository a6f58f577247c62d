"""The options of limits, which tenants, projects and keys share, and how limits are shown."""

from typing import Annotated

import msgspec
import typer

from headrace.cli.output import format_dollars
from headrace.cli.views import MoneyView

Rpm = Annotated[int | None, typer.Option(min=0, help="Requests a minute.")]
Tpm = Annotated[int | None, typer.Option(min=0, help="Tokens a minute, input and output.")]
Concurrency = Annotated[int | None, typer.Option(min=0, help="Requests at the same time.")]
BudgetUsd = Annotated[str | None, typer.Option(help="What may be spent in a period, in dollars.")]
BudgetPeriod = Annotated[str, typer.Option(help="The period of the budget: day or month, in UTC.")]
TokensPerDay = Annotated[int | None, typer.Option(min=0, help="Tokens a day (UTC).")]


class LimitsView(msgspec.Struct, frozen=True):
    """What is shown of limits."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    input_tokens_per_minute: int | None
    output_tokens_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_period: int | None
    period: str | int
    budget: MoneyView | None
    budget_period: str | int
    alert_only: bool


def limits_body(
    *,
    rpm: int | None,
    tpm: int | None,
    concurrency: int | None,
    budget_usd: str | None,
    budget_period: str,
    tokens_per_day: int | None,
) -> dict[str, object] | None:
    """The options as the admin API takes them; None if no limit was given."""
    given = {
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "concurrent_requests": concurrency,
        "budget_usd": budget_usd,
        "tokens_per_period": tokens_per_day,
    }
    chosen: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    return {**chosen, "budget_period": budget_period} if chosen else None


def limit_fields(limits: LimitsView | None) -> list[tuple[str, str]]:
    """One line a limit that there is."""
    if limits is None:
        return []
    budget = None if limits.budget is None else format_dollars(limits.budget.nanousd)
    shown: list[tuple[str, object, str]] = [
        ("requests", limits.requests_per_minute, "a minute"),
        ("tokens", limits.tokens_per_minute, "a minute"),
        ("input tokens", limits.input_tokens_per_minute, "a minute"),
        ("output tokens", limits.output_tokens_per_minute, "a minute"),
        ("concurrency", limits.concurrent_requests, "requests"),
        ("token quota", limits.tokens_per_period, _period(limits.period)),
        ("budget", budget, _period(limits.budget_period)),
    ]
    return [(name, f"{value} {unit}") for name, value, unit in shown if value is not None]


def _period(period: str | int) -> str:
    return f"in {period} s" if isinstance(period, int) else f"a {period}"
