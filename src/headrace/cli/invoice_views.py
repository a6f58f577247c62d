"""What the admin API says of invoices and terms, and how a terminal shows it."""

import msgspec

from headrace.cli.output import format_count, format_dollars
from headrace.cli.views import MoneyView

invoice_columns = (
    *("NUMBER", "ID", "TENANT", "FROM", "TO"),
    *(">TOTAL", ">DUE", "PAID", ">OPEN", ">UNRATED"),
)


class StandingView(msgspec.Struct, frozen=True):
    """How far an invoice is paid."""

    state: str
    currency: str
    credited: str
    paid: str
    open: str


class InvoiceView(msgspec.Struct, frozen=True):
    """What is shown of an invoice."""

    id: str
    number: str | None
    state: str
    tenant: str
    first_day: str
    last_day: str
    issue_day: str | None
    due_day: str | None
    subtotal: MoneyView
    total: MoneyView
    paid_from_credit: MoneyView
    due: MoneyView
    standing: StandingView | None
    unrated_requests: int


class CreditNoteView(msgspec.Struct, frozen=True):
    """What is shown of a credit note."""

    number: str
    invoice_number: str
    issue_day: str
    net: MoneyView
    tax: MoneyView
    total: MoneyView
    reason: str


class Address(msgspec.Struct, frozen=True):
    """A name as it is printed."""

    name: str


class Addressed(msgspec.Struct, frozen=True):
    """What is shown of a seller or a profile."""

    id: str
    party: Address


class TermsView(msgspec.Struct, frozen=True):
    """What is shown of terms."""

    tenant_id: str | None
    discount_percent: float
    free_tokens: dict[str, int]
    volume: list["VolumeStepView"]
    minimum: MoneyView


class VolumeStepView(msgspec.Struct, frozen=True):
    """A discount on what a month's amount has above a bound."""

    over: MoneyView
    percent: float


def invoice_row(invoice: InvoiceView) -> tuple[str, ...]:
    """An invoice under `invoice_columns`."""
    return (
        invoice.number or invoice.state,
        invoice.id,
        invoice.tenant,
        invoice.first_day,
        invoice.last_day,
        format_dollars(invoice.total.nanousd),
        format_dollars(invoice.due.nanousd),
        "-" if invoice.standing is None else invoice.standing.state,
        "-" if invoice.standing is None else _open(invoice.standing),
        format_count(invoice.unrated_requests),
    )


def invoice_fields(invoice: InvoiceView) -> list[tuple[str, str]]:
    """An invoice, a line each."""
    return [
        ("number", invoice.number or "-"),
        ("id", invoice.id),
        ("state", invoice.state),
        ("tenant", invoice.tenant),
        ("period", f"{invoice.first_day} to {invoice.last_day}"),
        ("issued", invoice.issue_day or "-"),
        ("due on", invoice.due_day or "-"),
        ("subtotal", format_dollars(invoice.subtotal.nanousd)),
        ("total", format_dollars(invoice.total.nanousd)),
        ("paid from credit", format_dollars(invoice.paid_from_credit.nanousd)),
        ("due", format_dollars(invoice.due.nanousd)),
        *([] if invoice.standing is None else _standing_fields(invoice.standing)),
        ("unrated requests", format_count(invoice.unrated_requests)),
    ]


def _standing_fields(standing: StandingView) -> list[tuple[str, str]]:
    return [
        ("credited", f"{standing.credited} {standing.currency}"),
        ("paid", f"{standing.paid} {standing.currency} ({standing.state})"),
        ("open", _open(standing)),
    ]


def _open(standing: StandingView) -> str:
    return f"{standing.open} {standing.currency}"


def note_fields(note: CreditNoteView) -> list[tuple[str, str]]:
    """A credit note, a line each."""
    return [
        ("number", note.number),
        ("invoice", note.invoice_number),
        ("issued", note.issue_day),
        ("net", format_dollars(note.net.nanousd)),
        ("tax", format_dollars(note.tax.nanousd)),
        ("total", format_dollars(note.total.nanousd)),
        ("reason", note.reason),
    ]


def address_fields(addressed: Addressed) -> list[tuple[str, str]]:
    """A seller or a profile, a line each."""
    return [("name", addressed.party.name), ("id", addressed.id)]


def terms_fields(terms: TermsView) -> list[tuple[str, str]]:
    """Terms, a line each."""
    return [
        ("of", terms.tenant_id or "everybody without own terms"),
        ("discount", f"{terms.discount_percent:g}%"),
        *((f"free tokens of {model}", format_count(n)) for model, n in terms.free_tokens.items()),
        *(
            (f"over {format_dollars(step.over.nanousd)} a month", f"-{step.percent:g}%")
            for step in terms.volume
        ),
        ("least a month", format_dollars(terms.minimum.nanousd)),
    ]
