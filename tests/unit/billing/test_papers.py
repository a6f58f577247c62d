"""The invoice as a page, a PDF and rows: the same bytes each time, and nothing unescaped."""

import csv
import datetime
import io
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.billing import pdf
from headrace.billing.draft import finalized
from headrace.billing.figures import named_rate
from headrace.billing.page import credit_note_page, invoice_page
from headrace.billing.pdf import invoice_pdf
from headrace.billing.tables import csv_of, json_lines_of, json_of
from headrace.spec.invoices import BillingProfile, CreditNote, Invoice, InvoiceTax, RatedUse

Draw = Callable[..., Invoice]
Use = Callable[..., RatedUse]
Profile = Callable[..., BillingProfile]


@pytest.fixture
def invoice(drawn: Draw, a_use: Use, a_profile: Profile) -> Invoice:
    uses = a_use(requests=20, prompt_tokens=1_234_567, input_nanousd=123_456_700, waived_nanousd=1)
    draft = drawn(uses, a_use(book_id=None, requests=3), buyer=a_profile("DE"))
    return finalized(draft, "INV-000007", datetime.date(2026, 12, 1), 14)


def test_the_page_says_it_all_and_escapes_names(invoice: Invoice) -> None:
    page = invoice_page(invoice).decode()
    assert page == invoice_page(invoice).decode()
    for text in ("INV-000007", "1,234,567", "$0.12", "VAT (19%)", "2026-12-15", "Pay soon."):
        assert text in page
    for text in ("input tokens", "$0.10 a million", "waived"):
        assert f">{text}<" in page
    assert "3 requests used models without a price" in page
    assert "Acme &lt;Łódź&gt;" in page
    assert "<Łódź>" not in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("name", "ppm", "shown"),
    [
        ("VAT", 190_000, "VAT (19%)"),
        ("VAT 19%", 190_000, "VAT 19%"),
        ("VAT 0%", 0, "VAT 0%"),
        ("VAT 19%", 90_000, "VAT 19% (9%)"),
    ],
)
def test_a_rate_is_said_once(invoice: Invoice, name: str, ppm: int, shown: str) -> None:
    tax = InvoiceTax(name=name, rate_ppm=ppm, amount_nanousd=0)
    page = invoice_page(msgspec.structs.replace(invoice, taxes=(tax,))).decode()
    assert f"<dt>{shown}</dt>" in page
    assert named_rate(name, ppm) == shown


def test_a_draft_says_so(drawn: Draw) -> None:
    page = invoice_page(drawn()).decode()
    assert "draft" in page
    assert "Nothing was used in this period." in page


def test_the_pdf_has_the_same_bytes_each_time(drawn: Draw, a_use: Use) -> None:
    draft = drawn(a_use(completion_tokens=5, output_nanousd=2_000))
    document = invoice_pdf(draft)
    assert document.startswith(b"%PDF-")
    assert document == invoice_pdf(draft)


def test_letters_without_a_font_are_an_error_that_says_what_to_do(
    invoice: Invoice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pdf, "unicode_fonts", (tmp_path / "none.ttf",))
    with pytest.raises(ConfigurationError, match="font_path"):
        invoice_pdf(invoice)


def test_rows_add_up_to_the_total(invoice: Invoice) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(invoice).decode())))
    total = int(rows[-1]["amount_nanousd"])
    assert rows[-1]["class"] == "total"
    assert total == invoice.total_nanousd == sum(int(row["amount_nanousd"]) for row in rows[:-1])


def test_json_reads_back(invoice: Invoice) -> None:
    assert json.loads(json_of(invoice))["due_nanousd"] == invoice.due_nanousd
    lines = [json.loads(line) for line in json_lines_of(invoice).splitlines()]
    assert [line["amount_nanousd"] for line in lines] == [
        line.amount_nanousd for line in invoice.lines
    ]
    assert lines[0]["number"] == "INV-000007"


def test_a_credit_note_names_its_invoice(invoice: Invoice) -> None:
    note = CreditNote(
        id="crn_1",
        number="CN-000001",
        invoice_id=invoice.id,
        invoice_number="INV-000007",
        tenant_id=invoice.tenant_id,
        issue_day="2026-12-02",
        reason="An outage on the 9th.",
        seller=invoice.seller,
        buyer=invoice.buyer,
        net_nanousd=10_000_000,
        tax_nanousd=0,
        total_nanousd=10_000_000,
    )
    page = credit_note_page(note).decode()
    assert "CN-000001" in page
    assert "INV-000007" in page
    assert "An outage on the 9th." in page
