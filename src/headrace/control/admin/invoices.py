"""Routes for invoices: who writes them, whom they go to, drafts, final ones and credit notes."""

import calendar
import datetime
from enum import StrEnum
from typing import Annotated, Self

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints, model_validator

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.billing import page, pdf, tables
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import Context
from headrace.control.admin.references import Reference
from headrace.control.admin.values import Dollars, Money, RequestBody
from headrace.control.invoicing import Days, Invoicing, seller_name
from headrace.spec.invoices import CreditNote, Invoice, InvoiceLine, Party, Seller, TaxRule
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant

router = APIRouter()

Line = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Country = Annotated[str, StringConstraints(pattern=r"^([A-Z]{2})?$")]
Month = Annotated[str, StringConstraints(pattern=r"^20\d\d-(0[1-9]|1[0-2])$")]
Prefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,30}$")]


class PartyFields(RequestBody):
    """A name and address as they are printed."""

    name: Line
    address: Annotated[list[Line], Field(max_length=10)] = []
    country: Country = ""
    tax_id: Annotated[str, Field(max_length=60)] = ""
    email: Annotated[str, Field(max_length=200)] = ""

    def party(self) -> Party:
        """The value that is kept."""
        return Party(**{**self.model_dump(), "address": tuple(self.address)})


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
    taxes: Annotated[list[TaxFields], Field(max_length=300)] = []
    payment_days: Annotated[int, Field(ge=0, le=365)] = 14
    payment_note: Annotated[str, Field(max_length=1000)] = ""
    font_path: Annotated[str, Field(max_length=500)] = ""


class ProfileFields(PartyFields):
    """Whom a tenant's invoices go to."""

    tax_exempt: bool = False


class InvoiceDraw(RequestBody):
    """Draw drafts: for one tenant or all; for a month, or from the first to the last day."""

    tenant: Reference | None = None
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


class InvoiceFinalize(RequestBody):
    """Make a draft final."""

    allow_unrated: bool = False


class CreditNoteCreate(RequestBody):
    """Take back a part of a final invoice: whole cents of its net amount."""

    amount_usd: Dollars
    reason: Annotated[str, StringConstraints(min_length=1, max_length=200)]


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
    requests: int
    tokens: int
    price_book_id: str
    amount: Money


class InvoiceTaxView(BaseModel):
    """One tax."""

    name: str
    percent: float
    amount: Money


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
    rounding: Money
    taxes: list[InvoiceTaxView]
    total: Money
    paid_from_credit: Money
    due: Money
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


class Invoices(BaseModel):
    """Some invoices."""

    items: list[InvoiceView]


class CreditNotes(BaseModel):
    """Some credit notes."""

    items: list[CreditNoteView]


class SellerView(PartyView):
    """Who writes the invoices."""

    id: str
    number_prefix: str
    payment_days: int
    payment_note: str


class ProfileView(PartyView):
    """Whom a tenant's invoices go to."""

    id: str
    tenant_id: str
    tax_exempt: bool


class Paper(StrEnum):
    """How an invoice is written."""

    HTML = "html"
    PDF = "pdf"
    CSV = "csv"
    JSON = "json"
    JSON_LINES = "jsonl"


media_types = {
    Paper.HTML: "text/html; charset=utf-8",
    Paper.PDF: "application/pdf",
    Paper.CSV: "text/csv; charset=utf-8",
    Paper.JSON: "application/json",
    Paper.JSON_LINES: "application/jsonl",
}


@router.put("/seller")
def set_seller(body: SellerFields, context: Context) -> SellerView:
    """Name who writes the invoices from now on; invoices that are final stay."""
    party = PartyFields(**body.model_dump(include=set(PartyFields.model_fields))).party()
    seller = _invoicing(context).set_seller(
        Seller(
            id=new_id(Seller.id_prefix, context.clock),
            name=seller_name,
            create_time=context.clock.wall_s(),
            party=party,
            number_prefix=body.number_prefix,
            taxes=tuple(tax.rule() for tax in body.taxes),
            payment_days=body.payment_days,
            payment_note=body.payment_note,
            font_path=body.font_path,
        )
    )
    return SellerView(
        **_party_fields(seller.party),
        id=seller.id,
        number_prefix=seller.number_prefix,
        payment_days=seller.payment_days,
        payment_note=seller.payment_note,
    )


@router.put("/tenants/{tenant}/billing-profile")
@allows(Permission.BILLING_WRITE)
def set_billing_profile(
    tenant: str, body: ProfileFields, access: Access, context: Context
) -> ProfileView:
    """Say whom a tenant's invoices go to; whether it owes tax is for operators to say."""
    found = access.resolve(Tenant, tenant)
    if body.tax_exempt and not access.actor.is_operator:
        raise InvalidRequest("only an operator can exempt from tax", param="tax_exempt")
    party = PartyFields(**body.model_dump(include=set(PartyFields.model_fields))).party()
    profile = _invoicing(context).set_profile(found, party, tax_exempt=body.tax_exempt)
    return ProfileView(
        **_party_fields(profile.party),
        id=profile.id,
        tenant_id=found.id,
        tax_exempt=profile.tax_exempt,
    )


@router.post("/invoices", status_code=201)
def draw_invoices(body: InvoiceDraw, context: Context, access: Access) -> Invoices:
    """Draw drafts from the ledger; older drafts of the same days are replaced."""
    store = context.database.store
    tenants = store.list(Tenant) if body.tenant is None else [access.resolve(Tenant, body.tenant)]
    drafts = _invoicing(context).draw(tenants, body.days())
    return Invoices(items=[_view(invoice) for invoice in drafts])


@router.get("/invoices")
@allows(Permission.BILLING_READ)
def list_invoices(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    month: Annotated[Month | None, Query()] = None,
) -> Invoices:
    """List the invoices of a tenant, or of all, the oldest period first."""
    one = access.one_tenant(tenant)
    found = context.database.invoices.list(None if one is None else one.id)
    if month is not None:
        found = [invoice for invoice in found if invoice.first_day.startswith(month)]
    return Invoices(items=[_view(invoice) for invoice in found])


@router.get("/invoices/{invoice}")
@allows(Permission.BILLING_READ)
def show_invoice(invoice: str, access: Access) -> InvoiceView:
    """Show one invoice, by its number or id."""
    return _view(_visible(access, invoice))


@router.get("/invoices/{invoice}/document")
@allows(Permission.BILLING_READ)
def write_invoice(
    invoice: str, access: Access, context: Context, paper: Annotated[Paper, Query(alias="format")]
) -> Response:
    """The invoice as a page, a PDF, or rows; the same bytes each time."""
    found = _visible(access, invoice)
    match paper:
        case Paper.HTML:
            content = page.invoice_page(found)
        case Paper.PDF:
            content = pdf.invoice_pdf(found, _invoicing(context).seller().font_path)
        case Paper.CSV:
            content = tables.csv_of(found)
        case Paper.JSON:
            content = tables.json_of(found)
        case Paper.JSON_LINES:
            content = tables.json_lines_of(found)
    headers = {
        "content-disposition": f'inline; filename="{found.number or found.id}.{paper}"',
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    }
    return Response(content, media_type=media_types[paper], headers=headers)


@router.post("/invoices/{invoice}/finalize")
def finalize_invoice(
    invoice: str, body: InvoiceFinalize, context: Context, access: Access
) -> InvoiceView:
    """Give a draft its number; from then on it never changes."""
    found = _visible(access, invoice)
    final = _invoicing(context).finalize(found, allow_unrated=body.allow_unrated)
    return _view(final)


@router.post("/invoices/{invoice}/credit-notes", status_code=201)
def create_credit_note(
    invoice: str, body: CreditNoteCreate, context: Context, access: Access
) -> CreditNoteView:
    """Take back a part of a final invoice; the tenant's account is credited with the net amount."""
    found = _visible(access, invoice)
    note = _invoicing(context).credit(found, parse_usd(body.amount_usd), body.reason)
    return _note_view(note)


@router.get("/invoices/{invoice}/credit-notes")
@allows(Permission.BILLING_READ)
def list_credit_notes(invoice: str, access: Access, context: Context) -> CreditNotes:
    """List what was taken back of an invoice."""
    found = _visible(access, invoice)
    notes = context.database.invoices.credit_notes(found.id)
    return CreditNotes(items=[_note_view(note) for note in notes])


def _invoicing(context: Context) -> Invoicing:
    return Invoicing(context.database, context.clock)


def _visible(access: GrantedAccess, reference: str) -> Invoice:
    """The invoice if its tenant is for this caller; else there is none."""
    found = access.context.database.invoices.get(reference)
    access.resolve(Tenant, found.tenant_id)
    return found


def _party_fields(party: Party) -> dict[str, object]:
    return {
        "name": party.name,
        "address": list(party.address),
        "country": party.country,
        "tax_id": party.tax_id,
        "email": party.email,
    }


def _view(invoice: Invoice) -> InvoiceView:
    return InvoiceView(
        id=invoice.id,
        number=invoice.number,
        state=invoice.state.value,
        tenant_id=invoice.tenant_id,
        tenant=invoice.tenant_name,
        first_day=datetime.date.fromisoformat(invoice.first_day),
        last_day=datetime.date.fromisoformat(invoice.last_day),
        issue_day=_optional_day(invoice.issue_day),
        due_day=_optional_day(invoice.due_day),
        seller=PartyView(**_party_fields(invoice.seller)),
        buyer=PartyView(**_party_fields(invoice.buyer)),
        lines=[_line_view(line) for line in invoice.lines],
        subtotal=Money.of(invoice.subtotal_nanousd),
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
        unrated_requests=invoice.unrated_requests,
    )


def _line_view(line: InvoiceLine) -> InvoiceLineView:
    return InvoiceLineView(
        model=line.model,
        token_class=line.token_class.value,
        requests=line.requests,
        tokens=line.tokens,
        price_book_id=line.price_book_id,
        amount=Money.of(line.amount_nanousd),
    )


def _note_view(note: CreditNote) -> CreditNoteView:
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


def _optional_day(text: str | None) -> datetime.date | None:
    return None if text is None else datetime.date.fromisoformat(text)
