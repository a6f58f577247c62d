"""Versioned prices. A price book never changes; a new one takes effect at its date."""

import msgspec

from headrace.spec.resource import Resource


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars a million tokens, by token class."""

    input_nanousd_per_million: int
    cached_input_nanousd_per_million: int
    output_nanousd_per_million: int


class PriceBook(Resource, frozen=True, kw_only=True, tag="price_book"):
    """Immutable prices by logical model, in force from `effective_time` on."""

    kind = "price_book"
    id_prefix = "prb"

    effective_time: float
    prices: dict[str, Price]
