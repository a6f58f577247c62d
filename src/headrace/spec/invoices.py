"""Who bills whom, and what an invoice and a credit note say.

An invoice is drawn from the ledger over whole UTC days. A draft can be drawn anew; a finalized one
never changes: it is corrected by credit notes. Every amount is in nano-dollars; the amounts that
somebody pays (tax, total, due) are whole cents. A buyer of another currency finds them in that as
well, at the rate of the day.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.spec.resource import Resource
from headrace.spec.settlements import Charge, TokenUsage

tax_rate_ppm_max = 1_000_000  # parts per million: all of the amount
rate_scale = 1_000_000  # exchange rates are kept as millionths
invoice_lines_max = 10_000


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """A name and address as they are printed."""

    name: str
    address: tuple[str, ...] = ()  # its lines
    country: str = ""  # ISO 3166, two letters
    tax_id: str = ""
    email: str = ""


class TaxRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is added for buyers of some countries; the first rule that fits counts."""

    name: str  # as printed: "VAT 19%"
    rate_ppm: int  # parts per million
    countries: tuple[str, ...] | None = None  # of the buyer; None: all
    without_tax_id_only: bool = False  # does not hold for buyers with a tax id: they account for it
    note: str = ""  # printed below: "Reverse charge: the recipient owes the tax."

    def __post_init__(self) -> None:
        if not 0 <= self.rate_ppm <= tax_rate_ppm_max:
            raise ValueError(f"a tax rate is 0 to {tax_rate_ppm_max} parts per million")


class Seller(Resource, frozen=True, kw_only=True, tag="seller"):
    """The one who writes the invoices; a platform has one."""

    kind = "seller"
    id_prefix = "sel"

    party: Party
    number_prefix: str = "INV"
    taxes: tuple[TaxRule, ...] = ()
    payment_days: int = 14
    payment_note: str = ""  # printed below: where to pay
    exchange_rates: Mapping[str, int] = {}  # ISO 4217 code: millionths of it for one dollar
    font_path: str = ""  # a TrueType font for PDF, where names need more than Latin letters


class BillingProfile(Resource, frozen=True, kw_only=True, tag="billing_profile"):
    """Whom a tenant's invoices go to; `parent_id` is the tenant."""

    kind = "billing_profile"
    id_prefix = "bpr"

    party: Party
    tax_exempt: bool = False
    currency: str = ""  # ISO 4217; empty: dollars


class TokenClass(StrEnum):
    """What a line of an invoice counts."""

    INPUT = "input"
    CACHED_INPUT = "cached input"
    OUTPUT = "output"
    REASONING = "reasoning"
    DRAFT = "refused drafts"
    EMBEDDING = "embedding"
    IMAGE = "image"
    REQUESTS = "requests"  # here and below: not in tokens
    IMAGES = "images"
    AUDIO = "seconds of sound"
    CHARACTERS = "characters"
    WAIVED = "waived"  # used beyond what was set aside at admission: the seller's loss


class RatedUse(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of the settlements of one tenant, model and price book over a period."""

    model: str
    price_book_id: str | None  # None: not rated yet
    requests: int
    usage: TokenUsage
    charge: Charge
    units: tuple[int, int, int, int] = (0, 0, 0, 0)  # sums of the counts of `UnitCounts`


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's prepaid account around a period."""

    opening_nanousd: int  # the balance when the period began; negative where it owed
    credits_nanousd: int  # what was credited in it, less what was taken back


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one model at one price."""

    model: str
    token_class: TokenClass
    price_book_id: str
    requests: int
    tokens: int
    price_nanousd_per_million: int | None  # None where the line has no price of its own
    amount_nanousd: int  # the sum of what each request was charged
    units: str = ""  # how many, as a decimal number; empty: the line counts tokens
    price_nanousd_per_unit: int | None = None  # the same for them


class Adjustment(msgspec.Struct, frozen=True):
    """What agreed terms add, or take off where negative."""

    name: str  # as printed
    amount_nanousd: int
    share_ppm: int | None = None  # of what it was taken; None: of no one amount


class Payable(msgspec.Struct, frozen=True):
    """What is paid in another currency than dollars, in its smallest units."""

    currency: str  # ISO 4217
    digits: int  # after the point
    rate_millionths: int  # of the currency for one dollar
    net: int
    tax: int
    total: int
    due: int


class InvoiceTax(msgspec.Struct, frozen=True, kw_only=True):
    """One tax on the subtotal."""

    name: str
    rate_ppm: int
    amount_nanousd: int
    note: str = ""


class InvoiceState(StrEnum):
    """An invoice's life."""

    DRAFT = "draft"
    FINALIZED = "finalized"


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant used in a period and has to pay."""

    id: str
    tenant_id: str
    tenant_name: str
    state: InvoiceState = InvoiceState.DRAFT
    number: str | None = None  # given when it is finalized, without gaps
    issue_day: str | None = None  # UTC, YYYY-MM-DD
    due_day: str | None = None
    first_day: str
    last_day: str  # inclusive
    seller: Party
    buyer: Party
    lines: tuple[InvoiceLine, ...]
    subtotal_nanousd: int  # the lines, exact
    adjustments: tuple[Adjustment, ...] = ()
    rounding_nanousd: int  # what makes whole cents of both
    taxes: tuple[InvoiceTax, ...]
    total_nanousd: int
    paid_from_credit_nanousd: int  # of the total
    due_nanousd: int
    unrated_requests: int  # used models without a price: not in this invoice
    payment_note: str = ""
    payable: Payable | None = None  # in the buyer's currency, if that is not dollars

    @property
    def adjusted_nanousd(self) -> int:
        """What the terms add in all; negative where they take off."""
        return sum(adjustment.amount_nanousd for adjustment in self.adjustments)

    @property
    def net_nanousd(self) -> int:
        """What is owed before taxes, in whole cents."""
        return self.subtotal_nanousd + self.adjusted_nanousd + self.rounding_nanousd


class CreditNote(msgspec.Struct, frozen=True, kw_only=True):
    """Takes back some or all of a finalized invoice."""

    id: str
    number: str
    invoice_id: str
    invoice_number: str
    tenant_id: str
    issue_day: str
    reason: str
    seller: Party
    buyer: Party
    net_nanousd: int
    tax_nanousd: int
    total_nanousd: int
