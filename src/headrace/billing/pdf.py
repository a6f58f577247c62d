"""An invoice as PDF, drawn by fpdf2; the same invoice gives the same bytes."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.billing import figures
from headrace.spec.invoices import Adjustment, Invoice, Party, Payable

if TYPE_CHECKING:
    from fpdf import FPDF

built_in_font = "helvetica"  # covers Latin letters alone
unicode_fonts = (
    Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
    Path("/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf"),
    Path("/Library/Fonts/Arial Unicode.ttf"),
)
line_height_mm = 5.0
column_widths_mm = (52, 36, 28, 36, 28)
cell_padding_mm = (0.6, 1.0)  # above and below, beside
rule_grey = 190  # of 255


def invoice_pdf(invoice: Invoice, font_path: str = "") -> bytes:
    """The pages of an invoice.

    `font_path` is a TrueType font for text beyond Latin letters; without it a usual place is
    looked at. ConfigurationError if fpdf2 is missing or such text has no font."""
    try:
        from fpdf import FPDF  # noqa: PLC0415  # an extra: who draws no PDF needs no PDF library
    except ImportError:
        raise ConfigurationError(
            "PDF needs the package fpdf2: pip install 'headrace[invoices]', or take html"
        ) from None
    pdf = FPDF(format="A4")
    pdf.set_creation_date(created(invoice))
    pdf.set_title(f"Invoice {invoice.number or 'draft'}")
    pdf.set_margins(15, 15)
    family = choose_font(pdf, invoice, font_path)
    pdf.add_page()
    draw_head(pdf, family, invoice)
    draw_lines(pdf, family, invoice)
    draw_totals(pdf, family, invoice)
    draw_notes(pdf, family, invoice)
    return bytes(pdf.output())


def created(invoice: Invoice) -> datetime.datetime:
    """The document's date: the day of issue, or the last that a draft covers."""
    day = datetime.date.fromisoformat(invoice.issue_day or invoice.last_day)
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)


def choose_font(pdf: "FPDF", invoice: Invoice, font_path: str) -> str:
    """The name of a font that has every character of the invoice."""
    try:
        msgspec.json.encode(invoice).decode().encode("cp1252")
    except UnicodeEncodeError:
        pass
    else:
        return built_in_font
    candidates = (Path(font_path),) if font_path else unicode_fonts
    for path in candidates:
        if path.is_file():
            pdf.add_font("unicode", fname=path)
            pdf.add_font("unicode", style="B", fname=path)
            return "unicode"
    raise ConfigurationError(
        "the invoice has letters that PDF's built-in font lacks; install a font "
        "(apt-get install fonts-dejavu-core), name one as the seller's `font_path`, or take html"
    )


def draw_head(pdf: "FPDF", family: str, invoice: Invoice) -> None:
    """The title, the dates and both parties."""
    pdf.set_font(family, "B", 20)
    pdf.cell(0, 10, f"Invoice {invoice.number or '(draft)'}", new_x="LMARGIN", new_y="NEXT")
    pdf.set_font(family, "", 10)
    facts = [f"Period {invoice.first_day} to {invoice.last_day}", f"Account {invoice.tenant_name}"]
    if invoice.issue_day and invoice.due_day:
        facts.append(f"Issued {invoice.issue_day}, due {invoice.due_day}")
    for fact in facts:
        pdf.cell(0, line_height_mm, fact, new_x="LMARGIN", new_y="NEXT")
    pdf.ln(6)
    top = pdf.get_y()
    bottoms = []
    for title, party, left_mm in (("From", invoice.seller, 15.0), ("To", invoice.buyer, 110.0)):
        pdf.set_xy(left_mm, top)
        draw_party(pdf, family, title, party)
        bottoms.append(pdf.get_y())
    pdf.set_xy(15, max(bottoms) + 6)


def draw_party(pdf: "FPDF", family: str, title: str, party: Party) -> None:
    """A name and address, from the current position down."""
    lines = [
        party.name,
        *party.address,
        party.country,
        f"Tax id {party.tax_id}" if party.tax_id else "",
        party.email,
    ]
    pdf.set_font(family, "B", 9)
    pdf.cell(80, line_height_mm, title, new_x="LEFT", new_y="NEXT")
    pdf.set_font(family, "", 10)
    for line in filter(None, lines):
        pdf.multi_cell(80, line_height_mm, line, new_x="LEFT", new_y="NEXT")


def draw_lines(pdf: "FPDF", family: str, invoice: Invoice) -> None:
    """The table of what was used; its head is repeated on each page."""
    pdf.set_font(family, "", 9)
    pdf.set_draw_color(rule_grey)
    alignments = ("LEFT", "LEFT", "RIGHT", "RIGHT", "RIGHT")
    with pdf.table(
        col_widths=column_widths_mm,
        text_align=alignments,
        borders_layout="HORIZONTAL_LINES",
        line_height=line_height_mm,
        padding=cell_padding_mm,
        v_align="TOP",
    ) as table:
        table.row(("Model", "What", "Quantity", "Price", "Amount"))
        for line in invoice.lines:
            table.row(
                (
                    line.model,
                    figures.counted(line),
                    figures.quantity(line),
                    figures.price(line),
                    figures.dollars(line.amount_nanousd),
                )
            )
        if not invoice.lines:
            table.row(("Nothing was used in this period.", "", "", "", ""))


def draw_totals(pdf: "FPDF", family: str, invoice: Invoice) -> None:
    """From the subtotal to what is due."""
    rows = [("Subtotal", invoice.subtotal_nanousd)]
    rows += [(adjustment_name(each), each.amount_nanousd) for each in invoice.adjustments]
    if invoice.rounding_nanousd:
        rows.append(("Rounding to cents", invoice.rounding_nanousd))
    rows += [
        (figures.named_rate(tax.name, tax.rate_ppm), tax.amount_nanousd) for tax in invoice.taxes
    ]
    rows.append(("Total", invoice.total_nanousd))
    if invoice.paid_from_credit_nanousd:
        rows.append(("Paid from credit", -invoice.paid_from_credit_nanousd))
    pdf.ln(4)
    for name, amount in rows:
        draw_total(pdf, name, figures.dollars(amount))
    pdf.set_font(family, "B", 12)
    draw_total(pdf, "Due", figures.dollars(invoice.due_nanousd))
    if invoice.payable is not None:
        draw_payable(pdf, family, invoice.payable)


def adjustment_name(adjustment: Adjustment) -> str:
    """The words of one of the terms, with its share if it is one."""
    share = adjustment.share_ppm
    return adjustment.name if share is None else figures.named_rate(adjustment.name, share)


def draw_payable(pdf: "FPDF", family: str, payable: Payable) -> None:
    """The amounts in the buyer's currency."""
    pdf.set_font(family, "", 9)
    draw_total(pdf, f"Net {figures.exchange(payable)}", figures.in_currency(payable.net, payable))
    if payable.tax:
        draw_total(pdf, "Tax", figures.in_currency(payable.tax, payable))
    pdf.set_font(family, "B", 12)
    draw_total(pdf, f"Due in {payable.currency}", figures.in_currency(payable.due, payable))


def draw_total(pdf: "FPDF", name: str, amount: str) -> None:
    """One line at the right."""
    pdf.set_x(85)
    pdf.cell(70, line_height_mm + 1, name)
    pdf.cell(
        40,
        line_height_mm + 1,
        amount,
        align="R",
        new_x="LMARGIN",
        new_y="NEXT",
    )


def draw_notes(pdf: "FPDF", family: str, invoice: Invoice) -> None:
    """What the law, the books and the seller have to say below."""
    notes = [tax.note for tax in invoice.taxes if tax.note]
    if invoice.unrated_requests:
        notes.append(
            f"{figures.count(invoice.unrated_requests)} requests used models without a price and "
            "are not in this invoice."
        )
    if invoice.payment_note:
        notes.append(invoice.payment_note)
    pdf.set_font(family, "", 9)
    pdf.ln(6)
    for note in notes:
        pdf.multi_cell(0, line_height_mm, note, new_x="LMARGIN", new_y="NEXT")
