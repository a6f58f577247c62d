"""Usage by day as a picture: bars in the terminal, or a file made by matplotlib.

The terminal's bars are one a day, each cut into its groups; the file has the same with a legend.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.base.errors import ConfigurationError
from headrace.cli.output import format_count, format_dollars

bar_characters = 48
colours = ("cyan", "yellow", "blue", "green", "magenta", "white")  # of groups, the largest first
groups_max = len(colours)
eighths = " ▏▎▍▌▋▊▉█"
nanousd_per_usd = 1_000_000_000


class Measure(StrEnum):
    """What is drawn."""

    TOKENS = "tokens"
    COST = "cost"
    REQUESTS = "requests"

    def text(self, value: int) -> str:
        """A value as people read it."""
        return format_dollars(value) if self is Measure.COST else format_count(value)


class Bar(NamedTuple):
    """One group's part of one day."""

    day: str
    group: str
    value: int


class Chart(NamedTuple):
    """Values by day and group; both in the order in which they are drawn."""

    days: list[str]
    groups: list[str]
    values: Mapping[tuple[str, str], int]

    def day_total(self, day: str) -> int:
        """Everything of a day."""
        return sum(self.values.get((day, group), 0) for group in self.groups)


def chart_of(bars: Sequence[Bar]) -> Chart:
    """The bars in order; groups beyond the largest are added up as `other`."""
    sums: dict[str, int] = {}
    for bar in bars:
        sums[bar.group] = sums.get(bar.group, 0) + bar.value
    ordered = sorted(sums, key=lambda group: (-sums[group], group))
    shown = ordered if len(ordered) <= groups_max else [*ordered[: groups_max - 1], "other"]
    values: dict[tuple[str, str], int] = {}
    for bar in bars:
        group = bar.group if bar.group in shown else "other"
        values[bar.day, group] = values.get((bar.day, group), 0) + bar.value
    return Chart(sorted({bar.day for bar in bars}), shown, values)


def write_bars(chart: Chart, measure: Measure, console: Console) -> None:
    """Draw in the terminal."""
    most = max(map(chart.day_total, chart.days), default=0)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=bar_characters)
    table.add_column(justify="right", no_wrap=True)
    for day in chart.days:
        table.add_row(day, day_bar(chart, day, most), measure.text(chart.day_total(day)))
    console.print(table)
    legend = Text()
    for group, colour in zip(chart.groups, colours, strict=False):
        legend.append("█ ", style=colour).append(f"{group or '-'}   ")
    console.print(legend)


def day_bar(chart: Chart, day: str, most: int) -> Text:
    """A day's bar: whole characters a group, the last one to an eighth."""
    text, drawn = Text(), 0
    so_far = 0
    for group, colour in zip(chart.groups, colours, strict=False):
        so_far += chart.values.get((day, group), 0)
        end = round(so_far * bar_characters * 8 / most) if most else 0
        whole = end // 8 - drawn
        text.append("█" * whole, style=colour)
        drawn += whole
        if group == chart.groups[-1] and end % 8:
            text.append(eighths[end % 8], style=colour)
    return text


def write_file(chart: Chart, measure: Measure, path: Path) -> None:
    """Draw into a PNG, SVG or PDF, as the name ends; ConfigurationError without matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra, and slow to import
    except ImportError:
        raise ConfigurationError(
            "--plot-to needs matplotlib: pip install 'headrace[plots]'."
        ) from None
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    scale = nanousd_per_usd if measure is Measure.COST else 1
    bottom = [0.0] * len(chart.days)
    for group in chart.groups:
        heights = [chart.values.get((day, group), 0) / scale for day in chart.days]
        axes.bar(chart.days, heights, bottom=bottom, label=group or "-", width=0.7)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("cost, $" if measure is Measure.COST else measure.value)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", rotation=45)
    if chart.groups:
        axes.legend(frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--plot-to {path}: {error}") from None
