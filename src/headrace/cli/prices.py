"""`headrace prices`: what models cost. A price book is a JSON file:

    {"effective_time": "2026-12-01T00:00:00Z",
     "prices": {"MODEL": {"input_usd_per_million": "0.10", "output_usd_per_million": "0.40",
                          "cached_input_usd_per_million": "0.02"}}}

Without `effective_time` it holds from now on; cached input costs as much as input where it is not
said. Amounts are text, so that no digit is lost.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment


class PriceView(msgspec.Struct, frozen=True):
    """Dollars a million tokens."""

    input_usd_per_million: str
    cached_input_usd_per_million: str
    output_usd_per_million: str


class PriceBookView(msgspec.Struct, frozen=True):
    """What is shown of a price book."""

    id: str
    name: str
    effective_time: str
    prices: dict[str, PriceView]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("prices", "What models cost: apply, list.", app)
    platform_command(group, "apply")(apply)
    platform_command(group, "list")(list_all)


def apply(
    platform: Platform,
    *,
    file: Annotated[Path, typer.Option("--file", "-f", help="A price book, as JSON.")],
) -> None:
    """Add a price book; what was used before its date keeps its price."""
    try:
        book = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{file} is not a price book: {error}") from error
    answer = platform.client.send("POST", "/prices", book)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        _write_books([msgspec.json.decode(answer, type=PriceBookView)])


def list_all(platform: Platform) -> None:
    """List price books, the oldest first."""
    answer = platform.client.list("/prices")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        _write_books(msgspec.json.decode(answer, type=dict[str, list[PriceBookView]])["items"])


def _write_books(books: list[PriceBookView]) -> None:
    rows = [
        (
            book.name,
            format_moment(book.effective_time),
            model,
            f"${price.input_usd_per_million}",
            f"${price.cached_input_usd_per_million}",
            f"${price.output_usd_per_million}",
        )
        for book in books
        for model, price in sorted(book.prices.items())
    ]
    output.write_table(
        ("BOOK", "FROM", "MODEL", ">INPUT / M", ">CACHED / M", ">OUTPUT / M"),
        rows,
        empty="no prices yet; add some with `headrace prices apply -f FILE`",
    )
