"""Invoices for programs: CSV with a row a line, and JSON lines with an object a line."""

import csv
import io

import msgspec

from headrace.base.money import format_usd
from headrace.spec.invoices import Invoice, InvoiceLine

columns = (
    "invoice_id",
    "number",
    "tenant",
    "first_day",
    "last_day",
    "model",
    "class",
    "requests",
    "tokens",
    "price_usd_per_million",
    "amount_usd",
    "amount_nanousd",
    "units",
    "price_usd_per_unit",
)


def csv_of(invoice: Invoice) -> bytes:
    """A header and a row for each line, then the terms, the rounding, the taxes and the total."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(row_of(invoice, line) for line in invoice.lines)
    totals = [(each.name, each.amount_nanousd) for each in invoice.adjustments]
    totals.append(("rounding", invoice.rounding_nanousd))
    totals += [(tax.name, tax.amount_nanousd) for tax in invoice.taxes]
    totals.append(("total", invoice.total_nanousd))
    for name, amount in totals:
        writer.writerow(
            [*head_of(invoice), "", name, "", "", "", format_usd(amount), amount, "", ""]
        )
    return text.getvalue().encode()


def head_of(invoice: Invoice) -> list[str]:
    """The columns that every row of an invoice repeats."""
    return [
        invoice.id,
        invoice.number or "",
        invoice.tenant_name,
        invoice.first_day,
        invoice.last_day,
    ]


def row_of(invoice: Invoice, line: InvoiceLine) -> list[object]:
    """The columns of one line."""
    price, each = line.price_nanousd_per_million, line.price_nanousd_per_unit
    return [
        *head_of(invoice),
        line.model,
        line.token_class.value,
        line.requests,
        line.tokens,
        "" if price is None else format_usd(price),
        format_usd(line.amount_nanousd),
        line.amount_nanousd,
        line.units,
        "" if each is None else format_usd(each),
    ]


def json_of(invoice: Invoice) -> bytes:
    """The whole invoice as one indented JSON document."""
    return msgspec.json.format(msgspec.json.encode(invoice), indent=2) + b"\n"


def json_lines_of(invoice: Invoice) -> bytes:
    """One JSON object a line of the invoice."""
    head = dict(zip(columns, head_of(invoice), strict=False))
    encoder = msgspec.json.Encoder()
    return b"".join(
        encoder.encode({**head, **msgspec.to_builtins(line)}) + b"\n" for line in invoice.lines
    )
