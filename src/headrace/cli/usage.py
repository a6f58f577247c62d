"""`headrace usage`: requests, tokens and cost from the ledger, by whatever is asked.

With `--json`, `items` has one object a group and `total` one over all, each with `requests`,
`finished`, `aborted`, `failed`, `unrated`, `prompt_tokens`, `cached_tokens`, `completion_tokens`
and `cost` as `{"nanousd": integer, "usd": text}`, besides the names and ids that it is grouped by.
"""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from headrace.cli import output
from headrace.cli.durations import parse_moment
from headrace.cli.output import note
from headrace.cli.platform import Platform, platform_command
from headrace.cli.usage_plot import Bar, Measure, chart_of, write_bars, write_file
from headrace.cli.views import MoneyView

groups = ("tenant", "project", "key", "model", "day")


class UsageItem(msgspec.Struct, frozen=True):
    """Sums over one group."""

    tenant: str | None
    project: str | None
    key: str | None
    model: str | None
    day: str | None
    requests: int
    finished: int
    aborted: int
    failed: int
    unrated: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: MoneyView


class UsageView(msgspec.Struct, frozen=True):
    """An answer of the usage route."""

    by: list[str]
    items: list[UsageItem]
    total: UsageItem


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    platform_command(app, "usage")(usage)


def usage(
    platform: Platform,
    *,
    by: Annotated[
        str, typer.Option(help=f"Groups, comma-separated: {', '.join(groups)}.")
    ] = "tenant,model",
    since: Annotated[
        str | None, typer.Option(help="From then on: 7d (ago), 2026-11-01 or a time, UTC.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Before then: 1d (ago), a day or a time, UTC.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    key: Annotated[str | None, typer.Option(help="Only this key's: name or id.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model's.")] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw bars by day instead of the table.")
    ] = False,
    measure: Annotated[
        Measure, typer.Option(help="What bars show: tokens, cost, requests.")
    ] = Measure.TOKENS,
    plot_to: Annotated[
        Path | None, typer.Option(help="Draw into this PNG, SVG or PDF instead.")
    ] = None,
) -> None:
    """Show requests, tokens and cost, summed by group."""
    now_s = time.time()
    is_plot = plot or plot_to is not None
    if is_plot:
        by = f"{by.replace('day', '').strip(',')},day"
    query = {
        "by": by,
        "since": since and parse_moment(since, now_s, "--since").isoformat(),
        "until": until and parse_moment(until, now_s, "--until").isoformat(),
        "tenant": tenant,
        "project": project,
        "key": key,
        "model": model,
    }
    answer = platform.client.get("/usage", query)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    found = msgspec.json.decode(answer, type=UsageView)
    if is_plot:
        draw(found, measure, plot_to)
        return
    columns = (
        *(name.upper() for name in found.by),
        ">REQUESTS",
        ">ABORTED",
        ">FAILED",
        ">PROMPT",
        ">CACHED",
        ">COMPLETION",
        ">COST",
    )
    rows = [_row(item, found.by) for item in found.items]
    if len(rows) > 1:
        rows.append(_row(found.total, ["total", *[""] * (len(found.by) - 1)], total=True))
    output.write_table(columns, rows, empty="no usage in this time")


def draw(found: UsageView, measure: Measure, path: Path | None) -> None:
    """Usage by day as bars, in the terminal or in a file."""
    names = [name for name in found.by if name != "day"]
    bars = [
        Bar(
            item.day or "", " ".join(_names(item)[name] or "-" for name in names), of(item, measure)
        )
        for item in found.items
    ]
    if not bars:
        note("no usage in this time")
    elif path is None:
        write_bars(chart_of(bars), measure, Console(highlight=False))
    else:
        write_file(chart_of(bars), measure, path)
        note(f"{path} shows {measure.value} by day")


def of(item: UsageItem, measure: Measure) -> int:
    """What is drawn of a row."""
    match measure:
        case Measure.COST:
            return item.cost.nanousd
        case Measure.REQUESTS:
            return item.requests
        case Measure.TOKENS:
            return item.prompt_tokens + item.completion_tokens


def _names(item: UsageItem) -> dict[str, str | None]:
    return {
        "tenant": item.tenant,
        "project": item.project,
        "key": item.key,
        "model": item.model,
        "day": item.day,
    }


def _row(item: UsageItem, by: list[str], *, total: bool = False) -> tuple[str, ...]:
    values = _names(item)
    cost = output.format_dollars(item.cost.nanousd)
    return (
        *(by if total else [values[name] or "-" for name in by]),
        output.format_count(item.requests),
        output.format_count(item.aborted),
        output.format_count(item.failed),
        output.format_count(item.prompt_tokens),
        output.format_count(item.cached_tokens),
        output.format_count(item.completion_tokens),
        f"{cost} + {item.unrated} unrated" if item.unrated else cost,
    )
