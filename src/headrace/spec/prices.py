"""Versioned prices. A price book never changes; a new one takes effect at its date."""

from collections.abc import Iterable

import msgspec

from headrace.spec.resource import Resource

price_nanousd_per_million_max = 10**18  # a thousand dollars a token


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars a million tokens, by token class.

    A class without a price of its own costs what the class costs that it is part of: reasoning is
    output, embedding and image are input; refused draft tokens are part of none and cost 0."""

    input_nanousd_per_million: int
    cached_input_nanousd_per_million: int
    output_nanousd_per_million: int
    reasoning_nanousd_per_million: int | None = None
    draft_nanousd_per_million: int | None = None
    embedding_nanousd_per_million: int | None = None
    image_nanousd_per_million: int | None = None

    def __post_init__(self) -> None:
        for amount in msgspec.structs.astuple(self):
            if amount is not None and not 0 <= amount <= price_nanousd_per_million_max:
                raise ValueError(
                    "a price is at least 0 and at most "
                    f"{price_nanousd_per_million_max} nano-dollars a million tokens"
                )

    @property
    def reasoning(self) -> int:
        """Of a reasoning token."""
        own = self.reasoning_nanousd_per_million
        return self.output_nanousd_per_million if own is None else own

    @property
    def embedding(self) -> int:
        """Of an embedding token."""
        own = self.embedding_nanousd_per_million
        return self.input_nanousd_per_million if own is None else own

    @property
    def image(self) -> int:
        """Of an image token."""
        own = self.image_nanousd_per_million
        return self.input_nanousd_per_million if own is None else own

    @property
    def draft(self) -> int:
        """Of a refused draft token."""
        return self.draft_nanousd_per_million or 0


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
