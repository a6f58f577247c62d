"""Routes for invoices: who writes them, whom they go to, drafts, final ones and credit notes."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.billing import exports, page, pdf, tables
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.invoice_values import (
    CreditNoteCreate,
    InvoiceDraw,
    InvoiceFinalize,
    Month,
    PeriodFields,
    ProfileFields,
    SellerFields,
    bounds_of,
)
from headrace.control.admin.invoice_views import (
    CreditNotes,
    CreditNoteView,
    Drafts,
    InvoiceView,
    ProfileView,
    SellerView,
    invoice_view,
    note_view,
    profile_view,
    seller_view,
)
from headrace.control.admin.pages import Page, page_items_default, page_items_max
from headrace.control.invoicing import Invoicing, seller_name
from headrace.control.payments.invoice_payments import InvoicePayments
from headrace.spec.invoices import Invoice, Seller, rate_scale
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Project, Tenant

router = APIRouter()


class Paper(StrEnum):
    """How an invoice is written."""

    HTML = "html"
    PDF = "pdf"
    CSV = "csv"
    JSON = "json"
    JSON_LINES = "jsonl"


class Export(StrEnum):
    """For which systems usage is written."""

    FOCUS = "focus"
    CLOUD_EVENTS = "cloudevents"


class InvoiceQuery(BaseModel):
    """Which invoices."""

    limit: Annotated[int, Field(ge=1, le=page_items_max)] = page_items_default
    after: Annotated[str, Field(max_length=64, description="`next` of the page before.")] = ""
    tenant: Annotated[str, Field(max_length=200)] | None = None
    month: Month | None = None


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
    seller = _invoicing(context).set_seller(
        Seller(
            id=new_id(Seller.id_prefix, context.clock),
            name=seller_name,
            create_time=context.clock.wall_s(),
            party=body.party(),
            number_prefix=body.number_prefix,
            taxes=tuple(tax.rule() for tax in body.taxes),
            payment_days=body.payment_days,
            payment_note=body.payment_note,
            exchange_rates={
                code: int(rate * rate_scale) for code, rate in body.exchange_rates.items()
            },
            font_path=body.font_path,
        )
    )
    return seller_view(seller)


@router.get("/seller")
def show_seller(context: Context) -> SellerView:
    """Show who writes the invoices; Conflict while nobody does."""
    return seller_view(_invoicing(context).seller())


@router.put("/tenants/{tenant}/billing-profile")
@allows(Permission.BILLING_WRITE)
def set_billing_profile(
    tenant: str, body: ProfileFields, access: Access, context: Context
) -> ProfileView:
    """Say whom a tenant's invoices go to; whether it owes tax is for operators to say."""
    found = access.resolve(Tenant, tenant)
    if body.tax_exempt and not access.actor.is_operator:
        raise InvalidRequest("only an operator can exempt from tax", param="tax_exempt")
    profile = _invoicing(context).set_profile(
        found, body.party(), tax_exempt=body.tax_exempt, currency=body.currency
    )
    return profile_view(profile)


@router.post("/invoices", status_code=201)
def draw_invoices(body: InvoiceDraw, context: Context, access: Access) -> Drafts:
    """Draw drafts from the ledger; older drafts that share days with them are replaced."""
    store = context.database.store
    tenants = store.list(Tenant) if body.tenant is None else [access.resolve(Tenant, body.tenant)]
    drafts = _invoicing(context).draw(tenants, body.days())
    return Drafts(items=[invoice_view(invoice) for invoice in drafts])


@router.get("/invoices")
@allows(Permission.BILLING_READ)
def list_invoices(
    query: Annotated[InvoiceQuery, Query()], access: Access, context: Context
) -> Page[InvoiceView]:
    """List the invoices of a tenant, or of all, the newest period first."""
    one = access.one_tenant(query.tenant)
    found = context.database.invoices.list(
        None if one is None else one.id,
        month=query.month or "",
        before=_place_of(query.after),
        limit=query.limit + 1,
    )
    part = found[: query.limit]
    standings = _payments(context).standings(part)
    return Page(
        items=[invoice_view(invoice, standings.get(invoice.id)) for invoice in part],
        next=f"{part[-1].first_day}:{part[-1].id}" if len(found) > query.limit else None,
    )


@router.get("/invoices/{invoice}")
@allows(Permission.BILLING_READ)
def show_invoice(invoice: str, access: Access, context: Context) -> InvoiceView:
    """Show one invoice, by its number or id."""
    return _shown(_visible(access, invoice), context)


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
    return _document(content, paper, found.number or found.id)


@router.get("/usage/export")
@allows(Permission.BILLING_READ)
def export_usage(
    access: Access,
    context: Context,
    month: Annotated[Month, Query()],
    export: Annotated[Export, Query(alias="format")],
    tenant: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """A month of usage as FOCUS rows (CSV) or CloudEvents (a line of JSON a request)."""
    one = access.one_tenant(tenant)
    used = context.database.late_rating.read(
        *bounds_of(PeriodFields(month=month).days()), None if one is None else one.id
    )
    if export is Export.CLOUD_EVENTS:
        return StreamingResponse(exports.cloud_events(used), media_type="application/jsonl")
    store = context.database.store
    names = {item.id: item.name for kind in (Tenant, Project) for item in store.list(kind)}
    seller = store.find(Seller, seller_name)
    provider = "headrace" if seller is None else seller.party.name
    rows = exports.focus_csv(exports.daily_uses(used), names, provider)
    return StreamingResponse(rows, media_type="text/csv")


@router.post("/invoices/{invoice}/finalize")
def finalize_invoice(
    invoice: str, body: InvoiceFinalize, context: Context, access: Access
) -> InvoiceView:
    """Give a draft its number; from then on it never changes."""
    found = _visible(access, invoice)
    final = _invoicing(context).finalize(
        found, allow_unrated=body.allow_unrated, allow_zero=body.allow_zero
    )
    return _shown(final, context)


@router.post("/invoices/{invoice}/credit-notes", status_code=201)
def create_credit_note(
    invoice: str, body: CreditNoteCreate, context: Context, access: Access
) -> CreditNoteView:
    """Take back a part of a final invoice; the tenant's account is credited with the net amount."""
    found = _visible(access, invoice)
    note = _invoicing(context).credit(found, parse_usd(body.amount_usd), body.reason)
    return note_view(note)


@router.get("/invoices/{invoice}/credit-notes")
@allows(Permission.BILLING_READ)
def list_credit_notes(invoice: str, access: Access, context: Context) -> CreditNotes:
    """List what was taken back of an invoice."""
    found = _visible(access, invoice)
    notes = context.database.invoices.credit_notes(found.id)
    return CreditNotes(items=[note_view(note) for note in notes])


@router.get("/credit-notes/{note}/document")
@allows(Permission.BILLING_READ)
def write_credit_note(note: str, access: Access, context: Context) -> Response:
    """The credit note as a page, by its number or id; the same bytes each time."""
    found = context.database.invoices.credit_note(note)
    access.resolve(Tenant, found.tenant_id)
    return _document(page.credit_note_page(found), Paper.HTML, found.number)


def _invoicing(context: AdminContext) -> Invoicing:
    return Invoicing(context.database, context.clock)


def _payments(context: AdminContext) -> InvoicePayments:
    return InvoicePayments(context.database, context.clock)


def _shown(invoice: Invoice, context: AdminContext) -> InvoiceView:
    return invoice_view(invoice, _payments(context).standings([invoice]).get(invoice.id))


def _document(content: bytes, paper: Paper, name: str) -> Response:
    headers = {
        "content-disposition": f'inline; filename="{name}.{paper}"',
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    }
    return Response(content, media_type=media_types[paper], headers=headers)


def _place_of(after: str) -> tuple[str, str] | None:
    """The first day and id that a page follows; None at the beginning."""
    if not after:
        return None
    first_day, _, invoice_id = after.partition(":")
    return first_day, invoice_id


def _visible(access: GrantedAccess, reference: str) -> Invoice:
    """The invoice if its tenant is for this caller; else there is none."""
    found = access.context.database.invoices.get(reference)
    access.resolve(Tenant, found.tenant_id)
    return found
