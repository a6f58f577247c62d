"""`headrace cache`: what of models lies on this disk, and how to have the room back.

An item is a model, a quantized copy, packed weights or an unfinished fetch; when each was last used
decides who goes first. With `--json`, a list of objects with `kind`, `name`, `key`, `paths`,
`size_bytes`, `create_time`, `use_time` (seconds since 1970), `is_stale`, `is_in_use`.
"""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.durations import parse_duration_s
from headrace.cli.settings import AsJson, CacheDir
from headrace.kernels import packed_layout
from headrace.weights.cache import ModelCache
from headrace.weights.cache_contents import (
    CacheItem,
    ItemKind,
    PrunePolicy,
    cache_items,
    chosen,
    remove,
)

size_pattern = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
columns = ("KIND", "NAME", ">SIZE", "WRITTEN", "LAST USED", "STATE")


class CacheRow(msgspec.Struct, frozen=True):
    """One item, as JSON has it."""

    kind: str
    name: str
    key: str
    paths: list[str]
    size_bytes: int
    create_time: float
    use_time: float
    is_stale: bool
    is_in_use: bool


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Model files and packed weights on this disk: list, prune.", no_args_is_help=True
    )
    app.add_typer(group, name="cache")
    group.callback()(cache)
    group.command("list")(list_)
    group.command("prune")(prune)


def cache() -> None:
    """Model files and packed weights on this disk."""


def list_(cache_dir: CacheDir, *, as_json: AsJson = False) -> None:
    """List what the model cache holds, the last used first."""
    items = cache_items(ModelCache(cache_dir), packed_layout())
    if as_json:
        output.write_json([_row(item) for item in items])
        return
    _write(items, empty=f"{cache_dir} holds no models yet.")
    if items:
        total = output.format_bytes(sum(item.size_bytes for item in items))
        output.note(f"{total} in {cache_dir}; `headrace cache prune` makes room.")


def prune(
    cache_dir: CacheDir,
    *,
    unused: Annotated[
        str | None, typer.Option(help="Remove what was not used for as long, such as 30d.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(help="Remove what was not used for longest until this is left, as 20GiB."),
    ] = None,
    kind: Annotated[
        list[ItemKind] | None, typer.Option(help="Of these kinds only; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what the model cache need not keep; what a running process uses always stays.

    Without a bound only what no start can find any more goes: copies of an older quantizer, packed
    weights of another version, what a writer left behind."""
    policy = PrunePolicy(
        kinds=frozenset(kind or ItemKind),
        unused_s_min=None if unused is None else parse_duration_s(unused, "--unused"),
        size_bytes_max=None if max_size is None else parse_size_bytes(max_size, "--max-size"),
    )
    models = ModelCache(cache_dir)
    goners = chosen(cache_items(models, packed_layout()), policy, SystemClock().wall_s())
    gone = [item for item in goners if dry_run or remove(models, item)]
    if as_json:
        output.write_json([_row(item) for item in gone])
        return
    _write(gone, empty="Nothing to remove.")
    if gone:
        size = output.format_bytes(sum(item.size_bytes for item in gone))
        output.note(f"{size} would be removed." if dry_run else f"{size} removed.")


def parse_size_bytes(text: str, option: str) -> int:
    """Read `20GiB`, `500MB` or plain bytes; ConfigurationError names the option."""
    match = size_pattern.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{option}: {text!r} is not a size; write for example 500MB, 20GiB or 0"
        )
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))


def _row(item: CacheItem) -> CacheRow:
    return CacheRow(
        item.kind.value,
        item.name,
        item.key,
        [str(path) for path in item.paths],
        item.size_bytes,
        item.create_time_s,
        item.use_time_s,
        item.is_stale,
        item.is_in_use,
    )


def _write(items: list[CacheItem], empty: str) -> None:
    rows = [
        (
            item.kind.value,
            _short(item),
            output.format_bytes(item.size_bytes),
            output.format_time(item.create_time_s),
            output.format_time(item.use_time_s),
            "in use" if item.is_in_use else "stale" if item.is_stale else "",
        )
        for item in items
    ]
    output.write_table(columns, rows, empty=empty)


def _short(item: CacheItem) -> str:
    """The end of a path or reference is what tells it from others."""
    name = Path(item.name).name if item.name.startswith("/") else item.name
    return name if len(name) <= 60 else f"{name[:20]}...{name[-37:]}"
