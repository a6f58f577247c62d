"""What the routes for invoices answer."""

import datetime
from decimal import Decimal

from pydantic import BaseModel

from headrace.billing import figures
from headrace.billing.standing import Standing
from headrace.control.admin.values import Money
from headrace.spec.invoices import (
    BillingProfile,
    CreditNote,
    Invoice,
    InvoiceLine,
    Party,
    Payable,
    Seller,
    rate_scale,
)


class PartyView(BaseModel):
    """A name and address."""

    name: str
    address: list[str]
    country: str
    tax_id: str
    email: str


class InvoiceLineView(BaseModel):
    """The use of one model at one price."""

    model: str
    token_class: str
    counted: str  # the same in words, as documents have it
    requests: int
    tokens: int
    price_book_id: str
    units: str = ""  # how many, where the line does not count tokens
    price_per_million: Money | None  # of its tokens; null where no one price explains the amount
    price_per_unit: Money | None  # of its units, likewise
    amount: Money


class InvoiceTaxView(BaseModel):
    """One tax."""

    name: str
    percent: float
    amount: Money


class AdjustmentView(BaseModel):
    """What agreed terms add or take off."""

    name: str
    percent: float | None
    amount: Money


class PayableView(BaseModel):
    """What is paid in another currency, as decimal numbers."""

    currency: str
    rate: str  # of the currency for one dollar
    net: str
    tax: str
    total: str
    due: str


class StandingView(BaseModel):
    """How far a final invoice is paid, as decimal numbers of what the buyer pays in."""

    state: str  # open, partly paid, paid, overpaid
    currency: str
    due: str
    credited: str  # taken back by credit notes
    paid: str
    open: str
    overpaid: str  # became credit


class InvoiceView(BaseModel):
    """An invoice or a draft of one."""

    id: str
    number: str | None
    state: str
    tenant_id: str
    tenant: str
    first_day: datetime.date
    last_day: datetime.date
    issue_day: datetime.date | None
    due_day: datetime.date | None
    seller: PartyView
    buyer: PartyView
    lines: list[InvoiceLineView]
    subtotal: Money
    adjustments: list[AdjustmentView]
    rounding: Money
    taxes: list[InvoiceTaxView]
    total: Money
    paid_from_credit: Money
    due: Money
    payable: PayableView | None
    standing: StandingView | None  # null: a draft
    unrated_requests: int


class CreditNoteView(BaseModel):
    """What was taken back of an invoice."""

    id: str
    number: str
    tenant_id: str
    invoice_id: str
    invoice_number: str
    issue_day: datetime.date
    reason: str
    net: Money
    tax: Money
    total: Money


class Drafts(BaseModel):
    """The drafts that were drawn."""

    items: list[InvoiceView]


class CreditNotes(BaseModel):
    """Some credit notes."""

    items: list[CreditNoteView]


class TaxView(BaseModel):
    """A rule for a tax."""

    name: str
    percent: float
    countries: list[str] | None
    without_tax_id_only: bool
    note: str


class SellerView(BaseModel):
    """Who writes the invoices, with all that a change of it has to repeat."""

    id: str
    party: PartyView
    number_prefix: str
    taxes: list[TaxView]
    payment_days: int
    payment_note: str
    exchange_rates: dict[str, str]
    font_path: str


class ProfileView(BaseModel):
    """Whom a tenant's invoices go to."""

    id: str
    tenant_id: str
    party: PartyView
    tax_exempt: bool
    currency: str


def party_view(party: Party) -> PartyView:
    """A name and address."""
    return PartyView(
        name=party.name,
        address=list(party.address),
        country=party.country,
        tax_id=party.tax_id,
        email=party.email,
    )


def invoice_view(invoice: Invoice, stands: Standing | None = None) -> InvoiceView:
    """An invoice with every amount in both forms, and how far it is paid once it is final."""
    return InvoiceView(
        id=invoice.id,
        number=invoice.number,
        state=invoice.state.value,
        tenant_id=invoice.tenant_id,
        tenant=invoice.tenant_name,
        first_day=datetime.date.fromisoformat(invoice.first_day),
        last_day=datetime.date.fromisoformat(invoice.last_day),
        issue_day=optional_day(invoice.issue_day),
        due_day=optional_day(invoice.due_day),
        seller=party_view(invoice.seller),
        buyer=party_view(invoice.buyer),
        lines=[line_view(line) for line in invoice.lines],
        subtotal=Money.of(invoice.subtotal_nanousd),
        adjustments=[
            AdjustmentView(
                name=each.name,
                percent=None if each.share_ppm is None else each.share_ppm / 10_000,
                amount=Money.of(each.amount_nanousd),
            )
            for each in invoice.adjustments
        ],
        rounding=Money.of(invoice.rounding_nanousd),
        taxes=[
            InvoiceTaxView(
                name=tax.name,
                percent=tax.rate_ppm / 10_000,
                amount=Money.of(tax.amount_nanousd),
            )
            for tax in invoice.taxes
        ],
        total=Money.of(invoice.total_nanousd),
        paid_from_credit=Money.of(invoice.paid_from_credit_nanousd),
        due=Money.of(invoice.due_nanousd),
        payable=None if invoice.payable is None else payable_view(invoice.payable),
        standing=None if stands is None else standing_view(stands),
        unrated_requests=invoice.unrated_requests,
    )


def standing_view(stands: Standing) -> StandingView:
    """How far an invoice is paid."""

    def decimal(units: int) -> str:
        return decimal_of(units, stands.digits)

    return StandingView(
        state=stands.state.value,
        currency=stands.currency,
        due=decimal(stands.due),
        credited=decimal(stands.credited),
        paid=decimal(stands.paid),
        open=decimal(stands.open),
        overpaid=decimal(stands.overpaid),
    )


def decimal_of(units: int, digits: int) -> str:
    """So many of a currency's smallest unit as a decimal number."""
    return f"{Decimal(units).scaleb(-digits):f}"


def payable_view(payable: Payable) -> PayableView:
    """The amounts of another currency."""

    def decimal(units: int) -> str:
        return decimal_of(units, payable.digits)

    return PayableView(
        currency=payable.currency,
        rate=rate_text(payable.rate_millionths),
        net=decimal(payable.net),
        tax=decimal(payable.tax),
        total=decimal(payable.total),
        due=decimal(payable.due),
    )


def rate_text(rate_millionths: int) -> str:
    """An exchange rate with the digits that matter."""
    return f"{(Decimal(rate_millionths) / rate_scale).normalize():f}"


def line_view(line: InvoiceLine) -> InvoiceLineView:
    """One line."""
    return InvoiceLineView(
        model=line.model,
        token_class=line.token_class.value,
        counted=figures.counted(line),
        requests=line.requests,
        tokens=line.tokens,
        price_book_id=line.price_book_id,
        units=line.units,
        price_per_million=optional_money(line.price_nanousd_per_million),
        price_per_unit=optional_money(line.price_nanousd_per_unit),
        amount=Money.of(line.amount_nanousd),
    )


def optional_money(amount_nanousd: int | None) -> Money | None:
    """An amount where there is one."""
    return None if amount_nanousd is None else Money.of(amount_nanousd)


def note_view(note: CreditNote) -> CreditNoteView:
    """A credit note."""
    return CreditNoteView(
        id=note.id,
        number=note.number,
        tenant_id=note.tenant_id,
        invoice_id=note.invoice_id,
        invoice_number=note.invoice_number,
        issue_day=datetime.date.fromisoformat(note.issue_day),
        reason=note.reason,
        net=Money.of(note.net_nanousd),
        tax=Money.of(note.tax_nanousd),
        total=Money.of(note.total_nanousd),
    )


def profile_view(profile: BillingProfile) -> ProfileView:
    """Whom invoices go to."""
    return ProfileView(
        id=profile.id,
        tenant_id=profile.parent_id,
        party=party_view(profile.party),
        tax_exempt=profile.tax_exempt,
        currency=profile.currency,
    )


def seller_view(seller: Seller) -> SellerView:
    """Who writes the invoices."""
    return SellerView(
        id=seller.id,
        party=party_view(seller.party),
        number_prefix=seller.number_prefix,
        taxes=[
            TaxView(
                name=rule.name,
                percent=rule.rate_ppm / 10_000,
                countries=None if rule.countries is None else list(rule.countries),
                without_tax_id_only=rule.without_tax_id_only,
                note=rule.note,
            )
            for rule in seller.taxes
        ],
        payment_days=seller.payment_days,
        payment_note=seller.payment_note,
        exchange_rates={code: rate_text(rate) for code, rate in seller.exchange_rates.items()},
        font_path=seller.font_path,
    )


def optional_day(text: str | None) -> datetime.date | None:
    """A day where there is one."""
    return None if text is None else datetime.date.fromisoformat(text)
