"""Invoices at rest: sums of the book, numbers without gaps, days invoiced once."""

import datetime
from collections.abc import Callable

import msgspec
import pytest

from headrace.base.errors import Conflict, NotFound
from headrace.spec.invoices import CreditNote, Invoice, Party
from headrace.spec.settlements import Charge, Settlement, TokenUsage
from headrace.storage import Database

Make = Callable[..., Settlement]
first, last = datetime.date(2027, 1, 1), datetime.date(2027, 1, 31)
january_s = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC).timestamp()
day_s = 86_400.0


def draft(invoice_id: str, first_day: str = "2027-01-01", last_day: str = "2027-01-31") -> Invoice:
    return Invoice(
        id=invoice_id,
        tenant_id="ten_a",
        tenant_name="acme",
        first_day=first_day,
        last_day=last_day,
        seller=Party(name="seller"),
        buyer=Party(name="acme"),
        lines=(),
        subtotal_nanousd=0,
        rounding_nanousd=0,
        taxes=(),
        total_nanousd=0,
        paid_from_credit_nanousd=0,
        due_nanousd=0,
        unrated_requests=0,
    )


def finalize(database: Database, invoice: Invoice) -> Invoice:
    def numbered(number: str) -> Invoice:
        return msgspec.structs.replace(invoice, number=number)

    return database.invoices.number(invoice, "INV", numbered)


def test_uses_are_summed_by_tenant_model_and_book(database: Database, settlement: Make) -> None:
    database.ledger.post(
        [
            settlement("r1", settle_time=january_s),
            settlement("r2", settle_time=january_s + 31 * day_s - 1),
            settlement("r3", settle_time=january_s + 31 * day_s),  # February
            settlement("r4", settle_time=january_s - 1),  # December
            settlement("r5", settle_time=january_s, price_book_id=None, charge=None),
            settlement("r6", settle_time=january_s, tenant_id="ten_b", model="large"),
            settlement(
                "r7",
                settle_time=january_s,
                usage=TokenUsage(5, 0, 9, reasoning_tokens=4),
                charge=Charge(reasoning_nanousd=3, waived_nanousd=1),
            ),
        ]
    )
    uses = database.invoices.rated_uses(first, last)
    by_book = {use.price_book_id: use for use in uses["ten_a"]}
    assert by_book["prb_a"].requests == 3
    assert by_book["prb_a"].usage.prompt_tokens == 25
    assert by_book["prb_a"].usage.reasoning_tokens == 4
    assert by_book["prb_a"].charge.amount_nanousd == 202
    assert by_book[None].requests == 1
    assert [use.model for use in uses["ten_b"]] == ["large"]
    assert database.invoices.rated_uses(first, last, "ten_b") == {"ten_b": uses["ten_b"]}


def test_an_account_opens_with_what_was_left(database: Database, settlement: Make) -> None:
    database.ledger.credit("ten_a", 1_000, "payment", "paid")  # on the 15th, by the clock
    database.ledger.post([settlement("r1", settle_time=january_s - day_s)])
    database.ledger.post([settlement("r2", settle_time=january_s)])
    account = database.invoices.account("ten_a", first, last)
    assert (account.opening_nanousd, account.credits_nanousd) == (-100, 1_000)
    february = (datetime.date(2027, 2, 1), datetime.date(2027, 2, 28))
    later = database.invoices.account("ten_a", *february)
    assert (later.opening_nanousd, later.credits_nanousd) == (800, 0)
    assert database.invoices.account("ten_b", first, last).opening_nanousd == 0


def test_numbers_have_no_gaps_even_if_one_fails(database: Database) -> None:
    months = [("inv_1", "01"), ("inv_2", "02"), ("inv_3", "03")]
    drafts = [draft(name, f"2027-{month}-01", f"2027-{month}-28") for name, month in months]
    for invoice in drafts:
        database.invoices.save_draft(invoice)

    def fail(number: str) -> Invoice:
        raise Conflict(f"{number} is not to be")

    assert finalize(database, drafts[0]).number == "INV-000001"
    with pytest.raises(Conflict):
        database.invoices.number(drafts[1], "INV", fail)
    assert finalize(database, drafts[2]).number == "INV-000002"
    assert finalize(database, drafts[1]).number == "INV-000003"
    assert database.invoices.get("INV-000003").id == "inv_2"


def test_invoices_are_read_from_the_newest_on_in_parts(database: Database) -> None:
    for name, month in (("inv_1", "01"), ("inv_2", "02"), ("inv_3", "03")):
        database.invoices.save_draft(draft(name, f"2027-{month}-01", f"2027-{month}-28"))
    newest, second = database.invoices.list(limit=2)
    assert (newest.id, second.id) == ("inv_3", "inv_2")
    rest = database.invoices.list(before=(second.first_day, second.id), limit=2)
    assert [invoice.id for invoice in rest] == ["inv_1"]
    assert [invoice.id for invoice in database.invoices.list(month="2027-02")] == ["inv_2"]


def test_a_day_is_invoiced_once(database: Database) -> None:
    database.invoices.save_draft(draft("inv_1"))
    database.invoices.save_draft(draft("inv_2"))  # takes the first one's place
    assert [invoice.id for invoice in database.invoices.list("ten_a")] == ["inv_2"]
    with pytest.raises(Conflict, match="draw it again"):
        finalize(database, draft("inv_1"))
    finalize(database, draft("inv_2"))
    with pytest.raises(Conflict, match="INV-000001 has some of these days"):
        database.invoices.save_draft(draft("inv_4", "2027-01-31", "2027-02-28"))
    with pytest.raises(Conflict):
        finalize(database, draft("inv_2"))
    database.invoices.save_draft(draft("inv_5", "2027-02-01", "2027-02-28"))


def test_a_credit_note_knows_what_was_credited_before(database: Database) -> None:
    database.invoices.save_draft(draft("inv_1"))
    invoice = finalize(database, draft("inv_1"))
    seen: list[int] = []

    def noted(number: str, before: int) -> CreditNote:
        seen.append(before)
        return CreditNote(
            id=f"crn_{number}",
            number=number,
            invoice_id=invoice.id,
            invoice_number=str(invoice.number),
            tenant_id=invoice.tenant_id,
            issue_day="2027-02-02",
            reason="",
            seller=invoice.seller,
            buyer=invoice.buyer,
            net_nanousd=50,
            tax_nanousd=0,
            total_nanousd=50,
        )

    notes = [database.invoices.add_credit_note(invoice, "CN", noted) for _ in range(2)]
    assert seen == [0, 50]
    assert database.invoices.credit_notes(invoice.id) == notes
    assert [note.number for note in notes] == ["CN-000001", "CN-000002"]


def test_an_unknown_invoice_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        database.invoices.get("INV-000001")
