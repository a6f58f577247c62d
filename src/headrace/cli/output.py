"""What commands write: JSON for programs, tables for people, and times and money in one style.

JSON goes to standard output alone, so that a pipe never meets a hint or a table.
"""

import datetime
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.base.money import format_usd

line_characters_max = 240  # a terminal wraps what is longer than it; ids stay whole to be copied


def write_json(value: object) -> None:
    """Write `value` as indented JSON and a newline."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Write aligned columns; a column whose name starts with `>` is right-aligned.

    `empty` is written instead where there are no rows: what the reader can do next."""
    if not rows:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    _print(table)


def write_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Write one thing as `name  value` lines."""
    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, value)
    _print(table)


def note(message: str) -> None:
    """Write a line for people to standard error, so that it never lands in a pipe."""
    print(message, file=sys.stderr)


def format_time(wall_s: float | None) -> str:
    """A moment as local date and time to the minute; a dash where there is none."""
    if wall_s is None:
        return "-"
    return datetime.datetime.fromtimestamp(wall_s).astimezone().strftime("%Y-%m-%d %H:%M")


def format_count(count: int) -> str:
    """An integer with thousands separated."""
    return f"{count:,}"


def format_dollars(amount_nanousd: int) -> str:
    """Money with its sign, every digit that matters."""
    text = format_usd(amount_nanousd)
    return f"-${text[1:]}" if text.startswith("-") else f"${text}"


def format_bytes(byte_count: float) -> str:
    """A size in the largest binary unit that leaves a number of at least one."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if byte_count < 1024 or unit == "TiB":
            return f"{byte_count:.0f} {unit}" if unit == "B" else f"{byte_count:.1f} {unit}"
        byte_count /= 1024
    raise AssertionError("the last unit takes any size")


def _print(table: Table) -> None:
    """Write a table without the blanks that fill its lines, which a copy would carry along."""
    console = Console(highlight=False, markup=False, emoji=False, width=line_characters_max)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
