"""`headrace top`: what the platform does now, in the terminal; the console's own figures."""

import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.cli.platform import Platform, platform_command


class Point(msgspec.Struct, frozen=True):
    """Traffic around a moment."""

    requests_per_s: float
    tokens_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    good_share: float | None
    running: int
    waiting: int


class LiveFigures(msgspec.Struct, frozen=True):
    """The last minutes."""

    status: str
    points: list[Point]


def register(app: typer.Typer) -> None:
    """Add the command."""
    platform_command(app, "top")(top)


def top(
    platform: Platform,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print once, and end.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.5, help="Seconds between looks.")] = 2.0,
) -> None:
    """Show requests, tokens, first tokens and goodput as they are, until Ctrl-C."""
    console = Console()
    if once:
        console.print(drawn(read(platform)))
        return
    with Live(drawn(read(platform)), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(drawn(read(platform)), refresh=True)


def read(platform: Platform) -> LiveFigures:
    """The figures of now."""
    return msgspec.json.decode(platform.client.get("/live"), type=LiveFigures)


def drawn(figures: LiveFigures) -> Table:
    """The figures as a table."""
    table = Table("", "now", title=f"headrace: {figures.status}", title_justify="left")
    table.columns[1].justify = "right"
    if not figures.points:
        table.add_row("samples", "none yet")
        return table
    point = figures.points[-1]
    for name, value in (
        ("requests/s", f"{point.requests_per_s:.2f}"),
        ("tokens/s", f"{point.tokens_per_s:.1f}"),
        ("first token p50", seconds(point.first_token_p50_s)),
        ("first token p99", seconds(point.first_token_p99_s)),
        ("goodput", "-" if point.good_share is None else f"{point.good_share:.0%}"),
        ("running", str(point.running)),
        ("waiting", str(point.waiting)),
    ):
        table.add_row(name, value)
    return table


def seconds(value: float | None) -> str:
    """A duration, or a dash."""
    return "-" if value is None else f"{value:.3f} s"
