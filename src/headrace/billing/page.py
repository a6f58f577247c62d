"""An invoice or a credit note as one HTML page: printable, in one file, nothing loaded."""

import functools

import jinja2

from headrace.billing import figures
from headrace.spec.invoices import CreditNote, Invoice


def invoice_page(invoice: Invoice) -> bytes:
    """The page of an invoice."""
    return _environment().get_template("invoice.html").render(invoice=invoice).encode()


def credit_note_page(note: CreditNote) -> bytes:
    """The page of a credit note."""
    return _environment().get_template("credit_note.html").render(note=note).encode()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.billing"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        dollars=figures.dollars,
        named_rate=figures.named_rate,
        count=figures.count,
        counted=figures.counted,
        quantity=figures.quantity,
        price=figures.price,
        in_currency=figures.in_currency,
        exchange=figures.exchange,
    )
    return environment
