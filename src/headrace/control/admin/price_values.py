"""What the routes for prices take and answer: dollars as text, and as exact nano-dollars."""

import datetime
from decimal import Decimal
from typing import Annotated, Self

import msgspec
from pydantic import BaseModel, Field, StringConstraints, model_validator

from headrace.base.errors import InvalidRequest
from headrace.base.money import format_usd, parse_usd
from headrace.control.admin.invoice_values import CurrencyCode, ExchangeRate
from headrace.control.admin.references import ModelName, Name, Reference
from headrace.control.admin.values import Dollars, Moment, RequestBody, moment
from headrace.spec.prices import (
    ContextTier,
    Price,
    PriceBook,
    UnitPrices,
    percent_max,
    unit_nanousd_max,
    unit_price_names,
)

PriorityWord = Annotated[str, StringConstraints(pattern=r"^(interactive|standard|batch)$")]
Percent = Annotated[int, Field(ge=0, le=percent_max)]
context_tiers_max = 8
unit_fields = ("usd_per_request", "usd_per_image", "usd_per_second", "usd_per_character")
context_tokens_max = 2**31


class TokenPriceFields(RequestBody):
    """Dollars a million tokens; cached input costs as much as input where it is not said.

    Reasoning without a price of its own is output, embeddings and images are input."""

    input_usd_per_million: Dollars
    cached_input_usd_per_million: Dollars | None = None
    output_usd_per_million: Dollars
    reasoning_usd_per_million: Dollars | None = None
    draft_usd_per_million: Dollars | None = None
    embedding_usd_per_million: Dollars | None = None
    image_usd_per_million: Dollars | None = None

    def flat_price(self, usd_per_unit: Decimal) -> Price:
        """The price that was sent, in dollars; InvalidRequest if it is negative."""

        def amount(text: str | None) -> int | None:
            return None if text is None else amount_of(text, usd_per_unit)

        whole = amount_of(self.input_usd_per_million, usd_per_unit)
        cached = amount(self.cached_input_usd_per_million)
        return Price(
            input_nanousd_per_million=whole,
            cached_input_nanousd_per_million=whole if cached is None else cached,
            output_nanousd_per_million=amount_of(self.output_usd_per_million, usd_per_unit),
            reasoning_nanousd_per_million=amount(self.reasoning_usd_per_million),
            draft_nanousd_per_million=amount(self.draft_usd_per_million),
            embedding_nanousd_per_million=amount(self.embedding_usd_per_million),
            image_nanousd_per_million=amount(self.image_usd_per_million),
        )


class ContextTierFields(TokenPriceFields):
    """The price of every token of a request whose prompt has more than so many tokens."""

    over_prompt_tokens: Annotated[int, Field(ge=0, le=context_tokens_max)]


class PriceFields(TokenPriceFields):
    """A model's price, its other prices for longer prompts, and what it costs by other units.

    Where a request used one of these units and nobody knows how many, it is left unrated."""

    input_usd_per_million: Dollars = "0"
    output_usd_per_million: Dollars = "0"
    usd_per_request: Dollars | None = None
    usd_per_image: Dollars | None = None  # that is made
    usd_per_second: Dollars | None = None  # of sound that is listened to
    usd_per_character: Dollars | None = None  # that is read aloud
    context_tiers: Annotated[
        tuple[ContextTierFields, ...], Field(max_length=context_tiers_max)
    ] = ()

    @model_validator(mode="after")
    def tokens_or_units(self) -> Self:
        """Prices of tokens, or of something else that takes their place."""
        given = self.model_fields_set
        if not {"input_usd_per_million", "output_usd_per_million"} <= given and not any(
            name in given for name in unit_fields
        ):
            raise ValueError(
                "give `input_usd_per_million` and `output_usd_per_million`, or a price by "
                "another unit: " + ", ".join(unit_fields)
            )
        return self

    def unit_prices(self, usd_per_unit: Decimal) -> UnitPrices | None:
        """The prices by other units than tokens, None if there are none."""
        amounts = [
            None if text is None else unit_amount_of(text, usd_per_unit)
            for text in (getattr(self, name) for name in unit_fields)
        ]
        if amounts == [None] * len(unit_fields):
            return None
        return UnitPrices(**dict(zip(unit_price_names, amounts, strict=True)))

    def price(self, usd_per_unit: Decimal = Decimal(1)) -> Price:
        """The price that was sent, in dollars; InvalidRequest if it cannot be one."""
        flat = self.flat_price(usd_per_unit)
        tiers = [
            ContextTier(tier.over_prompt_tokens, tier.flat_price(usd_per_unit))
            for tier in self.context_tiers
        ]
        starts = [tier.over_prompt_tokens for tier in tiers]
        if starts != sorted(set(starts)):
            raise InvalidRequest(
                "prices: write context_tiers in the order of over_prompt_tokens, each once",
                param="prices",
            )
        units = self.unit_prices(usd_per_unit)
        return msgspec.structs.replace(flat, context_tiers=tuple(tiers), units=units)


class PriceBookCreate(RequestBody):
    """A price book; the books before it stay in force until its date, and for what they priced."""

    name: Name | None = None
    tenant: Reference | None = None  # whose own prices these are; None: everybody's without own
    effective_time: Moment | None = None  # None: now
    prices: Annotated[dict[ModelName, PriceFields], Field(min_length=1, max_length=10_000)]
    priority_percent: dict[PriorityWord, Percent] = Field(default_factory=dict)  # of the prices
    region_percent: dict[Name, Percent] = Field(default_factory=dict, max_length=100)  # of those

    currency: CurrencyCode | None = None  # that the amounts are in; None: dollars, as they say
    usd_per_unit: ExchangeRate | None = None  # of that currency

    @model_validator(mode="after")
    def rate_with_currency(self) -> Self:
        """A currency and its rate, or neither."""
        if (self.currency is None) != (self.usd_per_unit is None):
            raise ValueError("give both `currency` and `usd_per_unit`, or neither")
        return self

    def by_model(self) -> dict[str, Price]:
        """The prices that were sent, in dollars."""
        rate = self.usd_per_unit or Decimal(1)
        return {model: fields.price(rate) for model, fields in self.prices.items()}


class TokenPriceView(BaseModel):
    """A price in both units."""

    input_usd_per_million: str
    cached_input_usd_per_million: str
    output_usd_per_million: str
    input_nanousd_per_million: int
    cached_input_nanousd_per_million: int
    output_nanousd_per_million: int
    reasoning_nanousd_per_million: int | None
    draft_nanousd_per_million: int | None
    embedding_nanousd_per_million: int | None
    image_nanousd_per_million: int | None


class ContextTierView(TokenPriceView):
    """The price of requests with longer prompts."""

    over_prompt_tokens: int


class PriceView(TokenPriceView):
    """A model's price with its tiers, and its prices by other units."""

    context_tiers: list[ContextTierView]
    usd_per_request: str | None = None
    usd_per_image: str | None = None
    usd_per_second: str | None = None
    usd_per_character: str | None = None


class PriceBookView(BaseModel):
    """An immutable price book."""

    id: str
    name: str
    tenant_id: str | None
    effective_time: datetime.datetime
    prices: dict[str, PriceView]
    priority_percent: dict[str, int]
    region_percent: dict[str, int]
    currency: str | None  # that the prices were quoted in, before they became dollars
    usd_per_unit: str | None
    create_time: datetime.datetime


class AppliedPrices(PriceBookView):
    """The price book that was sent."""

    unknown_models: list[str]  # that it names and that are not registered, so nobody pays for them


def book_view(book: PriceBook) -> PriceBookView:
    """A price book as it is shown."""
    return PriceBookView(
        id=book.id,
        name=book.name,
        tenant_id=book.parent_id or None,
        effective_time=moment(book.effective_time),
        prices={model: price_view(price) for model, price in book.prices.items()},
        priority_percent=dict(book.priority_percent),
        region_percent=dict(book.region_percent),
        currency=book.currency or None,
        usd_per_unit=book.usd_per_unit or None,
        create_time=moment(book.create_time),
    )


def price_view(price: Price) -> PriceView:
    """A price as it is shown."""
    tiers = [
        ContextTierView(
            over_prompt_tokens=tier.over_prompt_tokens, **token_price_view(tier.price).model_dump()
        )
        for tier in price.context_tiers
    ]
    amounts = (price.units or UnitPrices()).amounts()
    units = [None if amount is None else format_usd(amount) for amount in amounts]
    named = dict(zip(unit_fields, units, strict=True))
    return PriceView.model_validate(
        {"context_tiers": tiers, **token_price_view(price).model_dump(), **named}
    )


def token_price_view(price: Price) -> TokenPriceView:
    """A price without its tiers."""
    return TokenPriceView(
        input_usd_per_million=format_usd(price.input_nanousd_per_million),
        cached_input_usd_per_million=format_usd(price.cached_input_nanousd_per_million),
        output_usd_per_million=format_usd(price.output_nanousd_per_million),
        input_nanousd_per_million=price.input_nanousd_per_million,
        cached_input_nanousd_per_million=price.cached_input_nanousd_per_million,
        output_nanousd_per_million=price.output_nanousd_per_million,
        reasoning_nanousd_per_million=price.reasoning_nanousd_per_million,
        draft_nanousd_per_million=price.draft_nanousd_per_million,
        embedding_nanousd_per_million=price.embedding_nanousd_per_million,
        image_nanousd_per_million=price.image_nanousd_per_million,
    )


def unit_amount_of(text: str, usd_per_unit: Decimal) -> int:
    """Nano-dollars of a price that is not by a million; InvalidRequest if it can't be one."""
    amount_nanousd = amount_of(text, usd_per_unit)
    if amount_nanousd > unit_nanousd_max:
        raise InvalidRequest("prices: a unit costs a thousand dollars at most", param="prices")
    if amount_nanousd == 0 and Decimal(text) > 0:
        raise InvalidRequest(
            "prices: a unit costs a billionth of a dollar or nothing", param="prices"
        )
    return amount_nanousd


def amount_of(text: str, usd_per_unit: Decimal) -> int:
    """Nano-dollars of a price, rounded once; InvalidRequest if it is negative."""
    amount_nanousd = parse_usd(str(Decimal(text) * usd_per_unit))
    if amount_nanousd < 0:
        raise InvalidRequest("prices: a price is 0 or more", param="prices")
    return amount_nanousd
