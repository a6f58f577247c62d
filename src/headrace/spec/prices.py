"""Versioned prices. A price book never changes; a new one takes effect at its date."""

from collections.abc import Iterable

import msgspec

from headrace.spec.resource import Resource

price_nanousd_per_million_max = 10**18  # a thousand dollars a token


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars a million tokens, by token class."""

    input_nanousd_per_million: int
    cached_input_nanousd_per_million: int
    output_nanousd_per_million: int

    def __post_init__(self) -> None:
        amounts = msgspec.structs.astuple(self)
        if not 0 <= min(amounts) <= max(amounts) <= price_nanousd_per_million_max:
            raise ValueError(
                "a price is at least 0 and at most "
                f"{price_nanousd_per_million_max} nano-dollars a million tokens"
            )


class PriceBook(Resource, frozen=True, kw_only=True, tag="price_book"):
    """Immutable prices by logical model, in force from `effective_time` on."""

    kind = "price_book"
    id_prefix = "prb"

    effective_time: float
    prices: dict[str, Price]


class PriceVersion(msgspec.Struct, frozen=True):
    """A price and the book that it is quoted from."""

    price_book_id: str
    price: Price


def price_at(books: Iterable[PriceBook], model: str, time_s: float) -> PriceVersion | None:
    """The price of a logical model in force at `time_s`, or None if it has none.

    The book with the latest effective date that names the model decides, so that a new book
    need not repeat what it leaves alone; of two with the same date the one made later."""
    candidates = [book for book in books if book.effective_time <= time_s and model in book.prices]
    if not candidates:
        return None
    book = max(candidates, key=lambda book: (book.effective_time, book.create_time, book.id))
    return PriceVersion(book.id, book.prices[model])
