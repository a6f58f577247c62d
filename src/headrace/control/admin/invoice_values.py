"""What the routes for invoices take."""

import calendar
import datetime
from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from headrace.control.admin.references import (
    Reference,
    country_pattern,
    currency_pattern,
    month_pattern,
    optional_currency_pattern,
)
from headrace.control.admin.values import Dollars, RequestBody
from headrace.control.invoicing import Days
from headrace.spec.invoices import (
    Party,
    TaxRule,
)
from headrace.storage.invoices import day_s, start_s

Line = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Currency = Annotated[str, StringConstraints(pattern=optional_currency_pattern)]
CurrencyCode = Annotated[str, StringConstraints(pattern=currency_pattern)]
ExchangeRate = Annotated[Decimal, Field(gt=0, le=1_000_000, decimal_places=6)]
Country = Annotated[str, StringConstraints(pattern=country_pattern)]
Month = Annotated[str, StringConstraints(pattern=month_pattern)]
Prefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,30}$")]


class PartyFields(RequestBody):
    """A name and address as they are printed."""

    name: Line
    address: Annotated[tuple[Line, ...], Field(max_length=10)] = ()
    country: Country = ""
    tax_id: Annotated[str, Field(max_length=60)] = ""
    email: Annotated[str, Field(max_length=200)] = ""

    def party(self) -> Party:
        """The value that is kept."""
        return Party(
            name=self.name,
            address=self.address,
            country=self.country,
            tax_id=self.tax_id,
            email=self.email,
        )


class TaxFields(RequestBody):
    """A tax of buyers of some countries; the first that fits counts."""

    name: Line
    percent: Annotated[float, Field(ge=0, le=100)]
    countries: Annotated[list[Country], Field(min_length=1, max_length=300)] | None = None
    without_tax_id_only: bool = False
    note: Annotated[str, Field(max_length=500)] = ""

    def rule(self) -> TaxRule:
        """The value that is kept."""
        return TaxRule(
            name=self.name,
            rate_ppm=round(self.percent * 10_000),
            countries=None if self.countries is None else tuple(self.countries),
            without_tax_id_only=self.without_tax_id_only,
            note=self.note,
        )


class SellerFields(PartyFields):
    """Who writes the invoices."""

    number_prefix: Prefix = "INV"
    taxes: Annotated[tuple[TaxFields, ...], Field(max_length=300)] = ()
    payment_days: Annotated[int, Field(ge=0, le=365)] = 14
    payment_note: Annotated[str, Field(max_length=1000)] = ""
    exchange_rates: dict[CurrencyCode, ExchangeRate] = Field(default_factory=dict, max_length=200)
    font_path: Annotated[str, Field(max_length=500)] = ""


class ProfileFields(PartyFields):
    """Whom a tenant's invoices go to."""

    tax_exempt: bool = False
    currency: Currency = ""  # that the buyer pays in; empty: dollars


class PeriodFields(RequestBody):
    """A month, or the days from the first to the last."""

    month: Month | None = None
    first_day: datetime.date | None = None
    last_day: datetime.date | None = None

    @model_validator(mode="after")
    def one_period(self) -> Self:
        """A month, or both days."""
        by_days = self.first_day is not None and self.last_day is not None
        if by_days == (self.month is not None):
            raise ValueError("give `month`, or both `first_day` and `last_day`")
        return self

    def days(self) -> Days:
        """The first and the last day."""
        if self.first_day is not None and self.last_day is not None:
            return self.first_day, self.last_day
        assert self.month is not None
        year, month = map(int, self.month.split("-"))
        last = calendar.monthrange(year, month)[1]
        return datetime.date(year, month, 1), datetime.date(year, month, last)


def bounds_of(days: Days) -> tuple[float, float]:
    """Whole UTC days as seconds since the epoch, the end excluded."""
    first_day, last_day = days
    return start_s(first_day), start_s(last_day) + day_s


class InvoiceDraw(PeriodFields):
    """Draw drafts: for one tenant or all."""

    tenant: Reference | None = None


class InvoiceFinalize(RequestBody):
    """Make a draft final."""

    allow_unrated: bool = False  # leave out what has no price yet
    allow_zero: bool = False  # number it although it charges nothing


class CreditNoteCreate(RequestBody):
    """Take back a part of a final invoice: whole cents of its net amount."""

    amount_usd: Dollars
    reason: Annotated[str, StringConstraints(min_length=1, max_length=200)]
