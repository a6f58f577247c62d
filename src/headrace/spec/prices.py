"""Versioned prices. A price book never changes; a new one takes effect at its date."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.spec.priority import Priority
from headrace.spec.resource import Resource

price_nanousd_per_million_max = 10**18  # a thousand dollars a token
unit_nanousd_max = 10**12  # a thousand dollars an image
percent_max = 1000
batch_percent = 50  # as of OpenAI's batch API


class UnitPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars for what is counted in something else than tokens; None: no price of its own."""

    per_request_nanousd: int | None = None
    per_image_nanousd: int | None = None  # that was made
    per_second_nanousd: int | None = None  # of sound that was listened to
    per_character_nanousd: int | None = None  # that was read aloud

    def __post_init__(self) -> None:
        for amount in self.amounts():
            if amount is not None and not 0 <= amount <= unit_nanousd_max:
                raise ValueError(f"a price is 0 to {unit_nanousd_max} nano-dollars a unit")

    def amounts(self) -> tuple[int | None, ...]:
        """The prices in the order of `unit_price_names`."""
        return (
            self.per_request_nanousd,
            self.per_image_nanousd,
            self.per_second_nanousd,
            self.per_character_nanousd,
        )

    def shared(self, percent: int) -> "UnitPrices":
        """The same at a share of each amount, rounded down."""
        shares = [None if each is None else each * percent // 100 for each in self.amounts()]
        return UnitPrices(**dict(zip(unit_price_names, shares, strict=True)))


unit_price_names = UnitPrices.__struct_fields__


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars a million tokens, by token class, and for what is counted in other units.

    A class without a price of its own costs what the class costs that it is part of: reasoning is
    output, embedding and image are input; refused draft tokens are part of none and cost 0."""

    input_nanousd_per_million: int
    cached_input_nanousd_per_million: int
    output_nanousd_per_million: int
    reasoning_nanousd_per_million: int | None = None
    draft_nanousd_per_million: int | None = None
    embedding_nanousd_per_million: int | None = None
    image_nanousd_per_million: int | None = None
    context_tiers: tuple["ContextTier", ...] = ()  # other prices of longer prompts, the short first
    units: UnitPrices | None = None  # the same whatever the prompt's length; None: tokens alone

    def __post_init__(self) -> None:
        for amount in self.amounts():
            if amount is not None and not 0 <= amount <= price_nanousd_per_million_max:
                raise ValueError(
                    "a price is at least 0 and at most "
                    f"{price_nanousd_per_million_max} nano-dollars a million tokens"
                )
        starts = [tier.over_prompt_tokens for tier in self.context_tiers]
        if starts != sorted(set(starts)) or any(start < 0 for start in starts):
            raise ValueError("context tiers start at growing numbers of prompt tokens, from 0 on")
        if any(tier.price.context_tiers or tier.price.units for tier in self.context_tiers):
            raise ValueError("the price of a context tier has no tiers and no units of its own")

    def amounts(self) -> tuple[int | None, ...]:
        """The price of each token class that has one of its own, None of the others."""
        return tuple(getattr(self, name) for name in amount_names)

    def of_prompt(self, prompt_tokens: int) -> "Price":
        """What all tokens of a request cost whose prompt is so long."""
        found = self
        for tier in self.context_tiers:
            if prompt_tokens > tier.over_prompt_tokens:
                found = tier.price
        return found

    def shared(self, percent: int) -> "Price":
        """The same at a share of each amount, rounded down."""
        if percent == 100:
            return self
        changes: dict[str, Any] = {
            name: None if amount is None else amount * percent // 100
            for name, amount in zip(amount_names, self.amounts(), strict=True)
        }
        tiers = tuple(
            ContextTier(tier.over_prompt_tokens, tier.price.shared(percent))
            for tier in self.context_tiers
        )
        units = None if self.units is None else self.units.shared(percent)
        return msgspec.structs.replace(self, **changes, context_tiers=tiers, units=units)

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


class ContextTier(msgspec.Struct, frozen=True):
    """What every token of a request costs whose prompt has more than so many tokens."""

    over_prompt_tokens: int
    price: Price


amount_names = tuple(name for name in Price.__struct_fields__ if name.endswith("_per_million"))


class PriceBook(Resource, frozen=True, kw_only=True, tag="price_book"):
    """Immutable prices by logical model, in force from `effective_time` on.

    `parent_id` is the tenant whose own prices these are; empty: everybody's without own ones."""

    kind = "price_book"
    id_prefix = "prb"

    effective_time: float
    prices: dict[str, Price]
    priority_percent: Mapping[str, int] = {}  # of the prices, by priority; batch has 50 by itself
    region_percent: Mapping[str, int] = {}  # of that, by the region of the gateway
    currency: str = ""  # ISO 4217, that the prices were quoted in; empty: dollars
    usd_per_unit: str = ""  # the rate at which they became dollars, as it was written

    def __post_init__(self) -> None:
        shares = (*self.priority_percent.values(), *self.region_percent.values())
        if any(not 0 <= share <= percent_max for share in shares):
            raise ValueError(f"a share of the prices is 0 to {percent_max} percent")

    def percent_of(self, priority: Priority, region: str) -> int:
        """At which share of its prices a request of this priority is rated in this region."""
        share = self.priority_percent.get(priority.word, default_percent(priority))
        return share * self.region_percent.get(region, 100) // 100


def default_percent(priority: Priority) -> int:
    """The share of a price book that does not say, or of a model without a price as yet."""
    return batch_percent if priority is Priority.BATCH else 100


class PriceVersion(msgspec.Struct, frozen=True):
    """A price and the book that it is quoted from."""

    price_book_id: str
    price: Price


def price_at(
    books: Iterable[PriceBook], model: str, time_s: float, tenant_id: str = ""
) -> PriceVersion | None:
    """The price of a logical model in force at `time_s`, or None if it has none."""
    book = book_at(books, model, time_s, tenant_id)
    return None if book is None else PriceVersion(book.id, book.prices[model])


def book_at(
    books: Iterable[PriceBook], model: str, time_s: float, tenant_id: str = ""
) -> PriceBook | None:
    """The price book that a logical model is priced by at `time_s`, or None if there is none.

    The book with the latest effective date that names the model decides, so that a new book
    need not repeat what it leaves alone; of two with the same date the one made later. A tenant's
    own books go before everybody's, whatever their dates."""
    candidates = [
        book
        for book in books
        if book.effective_time <= time_s
        and model in book.prices
        and book.parent_id in ("", tenant_id)
    ]
    return max(
        candidates,
        default=None,
        key=lambda book: (
            book.parent_id != "",
            book.effective_time,
            book.create_time,
            book.id,
        ),
    )
