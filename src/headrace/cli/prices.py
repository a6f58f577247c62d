"""`headrace prices`: what models cost. A price book is a file of YAML or JSON:

    {"effective_time": "2026-12-01T00:00:00Z",
     "prices": {"MODEL": {"input_usd_per_million": "0.10", "output_usd_per_million": "0.40",
                          "cached_input_usd_per_million": "0.02"}}}

Without `effective_time` it holds from now on; cached input costs as much as input where it is not
said. `reasoning_usd_per_million`, `draft_...`, `embedding_...` and `image_...` are for models that
charge these apart. `usd_per_request`, `usd_per_image`, `usd_per_second`
(of sound that is listened to) and `usd_per_character` (that is read aloud) are for what engines do
not count in tokens, and may stand alone. `"context_tiers": [{"over_prompt_tokens": 200000, ...}]`
in a price holds other prices for all of a request whose prompt is longer. `"tenant": "acme"` beside
`prices` makes them that tenant's own. `"priority_percent": {"interactive": 150}` and
`"region_percent": {"eu": 110}` there are shares of the prices; batch has 50 unless it is said.
`"currency": "EUR", "usd_per_unit": "1.08"` says that the amounts are euros, and what one is worth.
Amounts with a fraction are in quotes, so that no digit is lost.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.files import read_fields
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView, format_moment


class TokenPriceView(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars a million tokens."""

    input_usd_per_million: str
    cached_input_usd_per_million: str
    output_usd_per_million: str


class ContextTierView(TokenPriceView, frozen=True, kw_only=True):
    """The price of requests with longer prompts."""

    over_prompt_tokens: int


class PriceView(TokenPriceView, frozen=True, kw_only=True):
    """A model's price with its tiers, and its prices by other units."""

    context_tiers: list[ContextTierView] = []
    usd_per_request: str | None = None
    usd_per_image: str | None = None
    usd_per_second: str | None = None
    usd_per_character: str | None = None


class PriceBookView(msgspec.Struct, frozen=True):
    """What is shown of a price book."""

    id: str
    name: str
    tenant_id: str | None
    effective_time: str
    prices: dict[str, PriceView]
    unknown_models: list[str] = []


class TrialRow(msgspec.Struct, frozen=True):
    """What a tenant's use of a model cost, and would have cost."""

    tenant: str
    model: str
    requests: int
    unrated_requests: int
    charged: MoneyView
    tried: MoneyView


class Trial(msgspec.Struct, frozen=True):
    """The whole trial."""

    items: list[TrialRow]
    charged: MoneyView
    tried: MoneyView


class RatedView(msgspec.Struct, frozen=True):
    """How many requests got a price."""

    rated_requests: int


PriceFile = Annotated[Path, typer.Option("--file", "-f", help="A price book, as JSON.")]
Month = Annotated[str | None, typer.Option(help="A UTC month, as 2026-11.")]
FirstDay = Annotated[str | None, typer.Option(help="Instead of a month: 2026-11-03.")]
LastDay = Annotated[str | None, typer.Option(help="The last day, included.")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("prices", "What models cost: apply, list, try, rate.", app)
    platform_command(group, "apply")(apply)
    platform_command(group, "list")(list_all)
    platform_command(group, "try")(try_book)
    platform_command(group, "rate")(rate)


def apply(platform: Platform, *, file: PriceFile) -> None:
    """Add a price book; what was used before its date keeps its price."""
    book = read_fields(file)
    answer = platform.client.send("POST", "/prices", book)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        book = msgspec.json.decode(answer, type=PriceBookView)
        _write_books([book])
        if book.unknown_models:
            names = ", ".join(book.unknown_models)
            output.note(f"not registered yet, so nobody uses it at this price: {names}")


def list_all(platform: Platform) -> None:
    """List price books, the oldest first."""
    answer = platform.client.list("/prices")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        _write_books(msgspec.json.decode(answer, type=dict[str, list[PriceBookView]])["items"])


def try_book(
    platform: Platform,
    *,
    file: PriceFile,
    month: Month = None,
    first_day: FirstDay = None,
    last_day: LastDay = None,
) -> None:
    """Show what a period would have cost at other prices; nothing is changed."""
    book = read_fields(file)
    body = {
        "prices": book.get("prices"),
        "tenant": book.get("tenant"),
        "month": month,
        "first_day": first_day,
        "last_day": last_day,
    }
    answer = platform.client.send("POST", "/prices/try", body)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    trial = msgspec.json.decode(answer, type=Trial)
    rows = [
        (
            row.tenant,
            row.model,
            output.format_count(row.requests),
            output.format_count(row.unrated_requests),
            output.format_dollars(row.charged.nanousd),
            output.format_dollars(row.tried.nanousd),
        )
        for row in trial.items
    ]
    charged, tried = (output.format_dollars(sum_.nanousd) for sum_ in (trial.charged, trial.tried))
    output.write_table(
        ("TENANT", "MODEL", ">REQUESTS", ">UNRATED", ">CHARGED", ">WOULD BE"),
        [*rows, ("all", "", "", "", charged, tried)] if rows else [],
        empty="nothing was used in this period",
    )


def rate(
    platform: Platform,
    *,
    month: Month = None,
    first_day: FirstDay = None,
    last_day: LastDay = None,
) -> None:
    """Rate what had no price when it was used, once and for good."""
    body = {"month": month, "first_day": first_day, "last_day": last_day}
    platform.show(
        platform.client.send("POST", "/prices/rate", body),
        RatedView,
        lambda view: [("rated requests", output.format_count(view.rated_requests))],
    )


def _write_books(books: list[PriceBookView]) -> None:
    output.write_table(
        ("BOOK", "OF", "FROM", "MODEL", ">INPUT / M", ">CACHED / M", ">OUTPUT / M", "UNITS"),
        [row for book in books for row in _rows(book)],
        empty="no prices yet; add some with `headrace prices apply -f FILE`",
    )


def _rows(book: PriceBookView) -> list[tuple[str, ...]]:
    """A row a model, and one below it for each tier of longer prompts."""
    head = (book.name, book.tenant_id or "everybody", format_moment(book.effective_time))
    rows: list[tuple[str, ...]] = []
    for model, price in sorted(book.prices.items()):
        rows.append((*head, model, *_amounts(price), _units(price)))
        rows += [
            (
                *head,
                f"  prompts over {output.format_count(tier.over_prompt_tokens)}",
                *_amounts(tier),
                "",
            )
            for tier in price.context_tiers
        ]
    return rows


def _units(price: PriceView) -> str:
    """What is not priced by token."""
    named = {
        "request": price.usd_per_request,
        "image": price.usd_per_image,
        "second": price.usd_per_second,
        "character": price.usd_per_character,
    }
    return ", ".join(f"${each} / {unit}" for unit, each in named.items() if each is not None)


def _amounts(price: TokenPriceView) -> tuple[str, str, str]:
    return (
        f"${price.input_usd_per_million}",
        f"${price.cached_input_usd_per_million}",
        f"${price.output_usd_per_million}",
    )
