"""`headrace top`: what the platform does now, in the terminal; the console's own figures."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli import output
from headrace.cli.platform import Platform, platform_command

heights = "▁▂▃▄▅▆▇█"
sparkline_characters = 40


class Point(msgspec.Struct, frozen=True):
    """Traffic around a moment."""

    requests_per_s: float
    tokens_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    good_share: float | None
    running: int
    waiting: int


class Window(msgspec.Struct, frozen=True):
    """What became of a model's requests in one window."""

    window_s: float
    requests: int
    good_share: float | None
    burn_rate: float | None


class ModelFigures(msgspec.Struct, frozen=True):
    """One model's windows, the shortest first."""

    model: str
    windows: list[Window]


class Goodput(msgspec.Struct, frozen=True):
    """Every model."""

    items: list[ModelFigures]


class LiveFigures(msgspec.Struct, frozen=True):
    """The last minutes."""

    status: str
    points: list[Point]
    last_success_age_s: float | None = None


class Figures(NamedTuple):
    """All that is shown."""

    live: LiveFigures
    goodput: Goodput


def register(app: typer.Typer) -> None:
    """Add the command."""
    platform_command(app, "top")(top)


def top(
    platform: Platform,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print once, and end.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.5, help="Seconds between looks.")] = 2.0,
) -> None:
    """Show requests, tokens, first tokens and goodput by model as they are, until Ctrl-C."""
    if platform.as_json:
        live, goodput = platform.client.get("/live"), platform.client.get("/goodput")
        output.write_json({"live": msgspec.Raw(live), "goodput": msgspec.Raw(goodput)})
        return
    console = Console()
    if once:
        console.print(drawn(read(platform)))
        return
    with Live(drawn(read(platform)), console=console, screen=True, auto_refresh=False) as live_view:
        while True:
            time.sleep(interval_s)
            live_view.update(drawn(read(platform)), refresh=True)


def read(platform: Platform) -> Figures:
    """The figures of now."""
    return Figures(
        msgspec.json.decode(platform.client.get("/live"), type=LiveFigures),
        msgspec.json.decode(platform.client.get("/goodput"), type=Goodput),
    )


def drawn(figures: Figures) -> Group:
    """The figures as tables, with the last minutes as a line of bars."""
    live = figures.live
    age_s = live.last_success_age_s
    succeeded = "" if age_s is None else f", a request succeeded {age_s:.0f} s ago"
    colour = "green" if live.status == "serving" else "yellow"
    title = Text.assemble("headrace: ", (live.status, colour), succeeded)
    return Group(title, traffic_table(live), "", "goodput", goodput_table(figures.goodput))


def traffic_table(live: LiveFigures) -> Table:
    """What goes on now."""
    table = Table("", "now", "last minutes")
    table.columns[1].justify = "right"
    if not live.points:
        table.add_row("samples", "none yet", "")
        return table
    point = live.points[-1]
    shown: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
        ("requests/s", f"{point.requests_per_s:.2f}", lambda p: p.requests_per_s),
        ("tokens/s", f"{point.tokens_per_s:.1f}", lambda p: p.tokens_per_s),
        ("first token p50", seconds(point.first_token_p50_s), lambda p: p.first_token_p50_s),
        ("first token p99", seconds(point.first_token_p99_s), lambda p: p.first_token_p99_s),
        ("running", str(point.running), lambda p: p.running),
        ("waiting", str(point.waiting), lambda p: p.waiting),
    )
    for name, value, field in shown:
        table.add_row(name, value, sparkline([field(each) for each in live.points]))
    return table


def goodput_table(goodput: Goodput) -> Table:
    """Each model's goodput, and how fast its error budget burns."""
    spans = [span(window.window_s) for window in goodput.items[0].windows] if goodput.items else []
    table = Table("model", *spans, "budget burns")
    for column in table.columns[1:]:
        column.justify = "right"
    for item in goodput.items:
        burn = item.windows[1].burn_rate if len(item.windows) > 1 else None
        table.add_row(
            item.model,
            *(share(window) for window in item.windows),
            "-" if burn is None else Text(f"{burn:.1f} x", style="red" if burn > 1 else "green"),
        )
    return table


def share(window: Window) -> str:
    """The good share, with of how many."""
    if window.good_share is None:
        return "-"
    return f"{window.good_share:.1%} of {window.requests:,}"


def span(seconds_: float) -> str:
    """A window's length in few characters."""
    return f"{seconds_ / 3600:.0f} h" if seconds_ >= 3600 else f"{seconds_ / 60:.0f} min"


def sparkline(values: Sequence[float | None]) -> str:
    """The newest values as bars of eight heights; a gap where there is none."""
    newest = values[-sparkline_characters:]
    most = max((value for value in newest if value is not None), default=0.0)
    return "".join(
        " " if value is None else heights[round(value / most * 7) if most else 0]
        for value in newest
    )


def seconds(value: float | None) -> str:
    """A duration, or a dash."""
    return "-" if value is None else f"{value:.3f} s"
