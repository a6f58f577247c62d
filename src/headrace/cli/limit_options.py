"""The options of limits, declared once for all that have limits; how limits are shown.

`LimitOptions` is an option group: a command takes it as one parameter, and `platform_command` makes
the options of its fields.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.durations import parse_duration_s
from headrace.cli.output import format_dollars
from headrace.cli.views import MoneyView
from headrace.spec.limits import CalendarPeriod

model_limit_fields = {  # what `--model-limit MODEL:...` may say, and the API's name of it
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "input-tpm": "input_tokens_per_minute",
    "output-tpm": "output_tokens_per_minute",
    "concurrency": "concurrent_requests",
    "tokens-per-day": "tokens_per_period",
    "budget-usd": "budget_usd",
}


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What may be used at most; each is optional, and none is no limit."""

    rpm: Annotated[int | None, typer.Option(min=0, help="Requests a minute.")] = None
    tpm: Annotated[int | None, typer.Option(min=0, help="Tokens a minute, in and out.")] = None
    input_tpm: Annotated[int | None, typer.Option(min=0, help="Input tokens a minute.")] = None
    output_tpm: Annotated[int | None, typer.Option(min=0, help="Output tokens a minute.")] = None
    concurrency: Annotated[int | None, typer.Option(min=0, help="Requests at the same time.")] = (
        None
    )
    budget_usd: Annotated[
        str | None, typer.Option(help="What may be spent in a period, in dollars.")
    ] = None
    budget_period: Annotated[
        str, typer.Option(help="The budget's period: day or month (UTC), or rolling, as 30d.")
    ] = "day"
    tokens_per_day: Annotated[int | None, typer.Option(min=0, help="Tokens a day (UTC).")] = None
    tokens_per_month: Annotated[int | None, typer.Option(min=0, help="Tokens a month (UTC).")] = (
        None
    )
    alert_only: Annotated[
        bool, typer.Option("--alert-only", help="Count and tell, and refuse nothing.")
    ] = False

    def body(self) -> dict[str, object] | None:
        """The options as the admin API takes them; None if no limit was given.

        ConfigurationError where they contradict each other."""
        if self.tokens_per_day is not None and self.tokens_per_month is not None:
            raise ConfigurationError("give --tokens-per-day or --tokens-per-month, not both")
        is_monthly = self.tokens_per_month is not None
        given = {
            "requests_per_minute": self.rpm,
            "tokens_per_minute": self.tpm,
            "input_tokens_per_minute": self.input_tpm,
            "output_tokens_per_minute": self.output_tpm,
            "concurrent_requests": self.concurrency,
            "budget_usd": self.budget_usd,
            "tokens_per_period": self.tokens_per_month if is_monthly else self.tokens_per_day,
        }
        chosen: dict[str, object] = {
            name: value for name, value in given.items() if value is not None
        }
        if not chosen:
            return None
        return {
            **chosen,
            "period": CalendarPeriod.MONTH if is_monthly else CalendarPeriod.DAY,
            "budget_period": parse_period(self.budget_period),
            "alert_only": self.alert_only,
        }


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


NoLimits = Annotated[
    bool, typer.Option("--no-limits", help="Take its limits away; others given replace them all.")
]
ModelLimits = Annotated[
    list[str] | None,
    typer.Option(
        "--model-limit",
        metavar="MODEL:LIMIT=N,...",
        help="Limits for one model, as small:rpm=60,budget-usd=1; repeat it for more models.",
    ),
]


def limits_change(limits: LimitOptions, no_limits: bool) -> dict[str, object]:
    """What an update says about limits: nothing, new ones, or that there are none."""
    body = limits.body()
    if no_limits and body is not None:
        raise ConfigurationError("give limits or --no-limits, not both")
    if no_limits:
        return {"limits": {}}
    return {} if body is None else {"limits": body}


def model_limits_body(texts: list[str] | None) -> dict[str, object] | None:
    """`MODEL:rpm=60,tpm=9000` options as the admin API takes them."""
    if not texts:
        return None
    found: dict[str, object] = {}
    for text in texts:
        model, colon, rest = text.rpartition(":")
        limits: dict[str, object] = {}
        for part in rest.split(",") if colon and model else ():
            name, _, value = part.strip().partition("=")
            if name not in model_limit_fields or not value:
                break
            is_count = name != "budget-usd"
            if is_count and not value.isdecimal():
                break
            limits[model_limit_fields[name]] = int(value) if is_count else value
        else:
            if limits:
                found[model] = limits
                continue
        raise ConfigurationError(
            f"--model-limit: {text!r} can't be read; write MODEL:LIMIT=N,... with the limits "
            f"{', '.join(model_limit_fields)}"
        )
    return found


def parse_period(text: str) -> str | int:
    """`day`, `month`, or a rolling span as seconds."""
    if text in tuple(CalendarPeriod):
        return text
    return parse_duration_s(text, "--budget-period")


def limit_fields(limits: LimitsView | None, of: str = "") -> list[tuple[str, str]]:
    """One line a limit that there is; `of` says what they are limits of."""
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
    note = ", alert only" if limits.alert_only else ""
    return [
        (f"{of} {name}".strip(), f"{value} {unit}{note}")
        for name, value, unit in shown
        if value is not None
    ]


def _period(period: str | int) -> str:
    return f"in {period} s" if isinstance(period, int) else f"a {period}"
