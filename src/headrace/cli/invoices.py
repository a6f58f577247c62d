"""`headrace invoices`: from usage to a bill.

The seller and a tenant's profile are YAML or JSON files:

    name: Compute GmbH                      # both
    address: [Mühlenweg 3, 10115 Berlin]
    country: DE
    tax_id: DE123456789
    taxes: [{name: VAT, percent: 19, countries: [DE]}]        # the seller's
    number_prefix: INV
    payment_days: 14
    exchange_rates: {EUR: 0.92}                               # for buyers who pay in euros
    tax_exempt: false                                         # a profile's
    currency: EUR

Terms are another such file, of a tenant or of everybody:

    discount_percent: 5
    free_tokens: {smollm2-135m-instruct: 1000000}             # a month
    volume: [{over_usd: "1000", percent: 10}]                 # of what a month has above it
    minimum_usd: "50"                                         # a month
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.admin_client import path_of
from headrace.cli.files import read_fields
from headrace.cli.invoice_views import (
    Addressed,
    CreditNoteView,
    InvoiceView,
    TermsView,
    address_fields,
    invoice_columns,
    invoice_fields,
    invoice_row,
    note_fields,
    terms_fields,
)
from headrace.cli.output import format_dollars
from headrace.cli.platform import Platform, platform_command, platform_group

InvoiceArgument = Annotated[str, typer.Argument(metavar="INVOICE", help="Its number or id.")]
PartyFile = Annotated[Path, typer.Option("--file", "-f", help="YAML or JSON.")]
MonthOption = Annotated[str | None, typer.Option(help="A UTC month, as 2026-11.")]


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


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "invoices",
        "What tenants owe: draft, finalize, list, show, credit, notes, export, seller, terms, ...",
        app,
    )
    platform_command(group, "draft")(draft)
    platform_command(group, "finalize")(finalize)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "credit")(credit)
    platform_command(group, "notes")(notes)
    platform_command(group, "export")(export)
    platform_command(group, "seller")(seller)
    platform_command(group, "profile")(profile)
    platform_command(group, "terms")(terms)


def draft(
    platform: Platform,
    *,
    tenant: Annotated[
        str | None, typer.Option(help="A name or id; without it, every tenant.")
    ] = None,
    month: MonthOption = None,
    first_day: Annotated[str | None, typer.Option(help="Instead of a month: 2026-11-03.")] = None,
    last_day: Annotated[str | None, typer.Option(help="The last day, included.")] = None,
) -> None:
    """Draw drafts from the ledger; older drafts of the same days are replaced."""
    body = {"tenant": tenant, "month": month, "first_day": first_day, "last_day": last_day}
    _show_invoices(platform, platform.client.send("POST", "/invoices", body))


def finalize(
    platform: Platform,
    invoice: InvoiceArgument,
    *,
    allow_unrated: Annotated[
        bool, typer.Option("--allow-unrated", help="Leave out what has no price yet.")
    ] = False,
    allow_zero: Annotated[
        bool, typer.Option("--allow-zero", help="Number it although it charges nothing.")
    ] = False,
) -> None:
    """Give a draft its number; from then on it never changes."""
    path = f"/invoices/{path_of(invoice)}/finalize"
    answer = platform.client.send(
        "POST", path, {"allow_unrated": allow_unrated, "allow_zero": allow_zero}
    )
    platform.show(answer, InvoiceView, invoice_fields)


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    month: MonthOption = None,
) -> None:
    """List invoices, the newest period first."""
    answer = platform.client.list("/invoices", {"tenant": tenant, "month": month})
    _show_invoices(platform, answer)


def show(
    platform: Platform,
    invoice: Annotated[
        str | None, typer.Argument(metavar="INVOICE", help="Its number or id.")
    ] = None,
    *,
    tenant: Annotated[
        str | None, typer.Option(help="Instead of a number: whose invoice of a month.")
    ] = None,
    month: MonthOption = None,
    paper: Annotated[
        Paper | None, typer.Option("--format", help="Write the document itself.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; without it, standard output.")] = None,
) -> None:
    """Show an invoice, or write it as a document."""
    reference = invoice or _of_month(platform, tenant, month)
    if paper is None and out is None:
        answer = platform.client.get(f"/invoices/{path_of(reference)}")
        platform.show(answer, InvoiceView, invoice_fields)
        return
    chosen = paper or _paper_of(out)
    content = platform.client.get(
        f"/invoices/{path_of(reference)}/document", {"format": chosen.value}
    )
    if out is None:
        sys.stdout.buffer.write(content)
        return
    _write(out, content)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written: {error.strerror}") from error


def credit(
    platform: Platform,
    invoice: InvoiceArgument,
    amount_usd: Annotated[str, typer.Argument(metavar="DOLLARS", help="Net, in whole cents.")],
    *,
    reason: Annotated[str, typer.Option(help="What for; printed on the note.")],
) -> None:
    """Take back a part of a final invoice by a credit note, into the tenant's balance."""
    path = f"/invoices/{path_of(invoice)}/credit-notes"
    body = {"amount_usd": amount_usd, "reason": reason}
    platform.show(platform.client.send("POST", path, body), CreditNoteView, note_fields)


def notes(
    platform: Platform,
    invoice: InvoiceArgument,
    *,
    out: Annotated[
        Path | None, typer.Option(help="A folder, which gets a page (HTML) of each.")
    ] = None,
) -> None:
    """List the credit notes of an invoice, or write them as documents."""
    answer = platform.client.get(f"/invoices/{path_of(invoice)}/credit-notes")
    if out is not None:
        for note in msgspec.json.decode(answer, type=dict[str, list[CreditNoteView]])["items"]:
            content = platform.client.get(f"/credit-notes/{path_of(note.number)}/document")
            _write(out / f"{note.number}.html", content)
    platform.show_list(
        answer,
        CreditNoteView,
        ("NUMBER", "ISSUED", ">NET", ">TAX", ">TOTAL", "REASON"),
        lambda note: (
            note.number,
            note.issue_day,
            format_dollars(note.net.nanousd),
            format_dollars(note.tax.nanousd),
            format_dollars(note.total.nanousd),
            note.reason,
        ),
        empty="nothing was taken back of it; write one with `headrace invoices credit`",
    )


def export(
    platform: Platform,
    *,
    month: Annotated[str, typer.Option(help="A UTC month, as 2026-11.")],
    system: Annotated[
        Export, typer.Option("--format", help="FOCUS rows, or an event a request.")
    ] = Export.FOCUS,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write a month of usage for cost tools (FOCUS) or meters (CloudEvents)."""
    query = {"month": month, "format": system.value, "tenant": tenant}
    try:
        with out.open("wb") as file:
            platform.client.download("/usage/export", query, file)
    except OSError as error:
        raise ConfigurationError(f"{out} can't be written: {error.strerror}") from error


def seller(platform: Platform, *, file: PartyFile) -> None:
    """Name who writes the invoices from now on."""
    platform.show(
        platform.client.send("PUT", "/seller", read_fields(file)), Addressed, address_fields
    )


def profile(
    platform: Platform,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Its name or id.")],
    *,
    file: PartyFile,
) -> None:
    """Say whom a tenant's invoices go to from now on."""
    path = f"/tenants/{path_of(tenant)}/billing-profile"
    platform.show(platform.client.send("PUT", path, read_fields(file)), Addressed, address_fields)


def terms(
    platform: Platform,
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="Without it, everybody's.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Agree on these: YAML or JSON.")
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Forget them.")] = False,
) -> None:
    """Show, set or drop what was agreed beyond the price list."""
    path = "/terms" if tenant is None else f"/tenants/{path_of(tenant)}/terms"
    if drop:
        platform.client.send("DELETE", path)
    elif file is None:
        platform.show(platform.client.get(path), TermsView, terms_fields)
    else:
        platform.show(platform.client.send("PUT", path, read_fields(file)), TermsView, terms_fields)


def _of_month(platform: Platform, tenant: str | None, month: str | None) -> str:
    """The one invoice of a tenant and month."""
    if tenant is None or month is None:
        raise ConfigurationError("name the invoice, or give --tenant and --month")
    answer = platform.client.list("/invoices", {"tenant": tenant, "month": month})
    found = msgspec.json.decode(answer, type=dict[str, list[InvoiceView]])["items"]
    if len(found) != 1:
        raise ConfigurationError(
            f"{tenant} has {len(found)} invoices of {month}; "
            + (
                "name one by its number or id"
                if found
                else "draw one with `headrace invoices draft`"
            )
        )
    return found[0].id


def _paper_of(out: Path | None) -> Paper:
    """The kind of document that a file's name asks for."""
    suffix = "" if out is None else out.suffix.removeprefix(".")
    try:
        return Paper(suffix)
    except ValueError:
        raise ConfigurationError(
            f"{out}: say what to write with --format {'|'.join(Paper)}"
        ) from None


def _show_invoices(platform: Platform, answer: bytes) -> None:
    platform.show_list(
        answer,
        InvoiceView,
        invoice_columns,
        invoice_row,
        empty="no invoices yet; draw some with `headrace invoices draft --month 2026-11`",
    )
