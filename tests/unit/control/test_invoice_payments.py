"""Transfers in the books: a reference counts once, and what was recorded wrongly is taken back."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import Conflict, InvalidRequest
from headrace.control.payments.invoice_payments import InvoicePayments
from headrace.control.payments.payments import Payments
from headrace.control.payments.provider import Answer, ChargeOrder, RefundOrder, Verdict
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.events import EventType, Webhook
from headrace.spec.invoices import Invoice, InvoiceState, Party
from headrace.spec.payments import Payment, PaymentState
from headrace.spec.tenancy import Tenant
from headrace.storage import Database

dollar = 10**9
acme = Tenant(id="ten_acme", name="acme", create_time=0.0)


class Provider:
    """Takes any money."""

    name = "stripe"

    def charge(self, order: ChargeOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED, f"pi_{order.amount_units}")

    def refund(self, order: RefundOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    database.store.create(acme)
    yield database
    database.close()


@pytest.fixture
def payments(database: Database, clock: ManualClock) -> InvoicePayments:
    return InvoicePayments(database, clock)


@pytest.fixture
def invoice(database: Database) -> Invoice:
    """A hundred dollars and VAT, final."""
    draft = Invoice(
        id="inv_1",
        tenant_id=acme.id,
        tenant_name="acme",
        first_day="2026-11-01",
        last_day="2026-11-30",
        seller=Party(name="Compute GmbH"),
        buyer=Party(name="acme"),
        lines=(),
        subtotal_nanousd=100 * dollar,
        rounding_nanousd=0,
        taxes=(),
        total_nanousd=119 * dollar,
        paid_from_credit_nanousd=0,
        due_nanousd=119 * dollar,
        unrated_requests=0,
    )
    database.invoices.save_draft(draft)
    return database.invoices.number(
        draft,
        "INV",
        lambda number: msgspec.structs.replace(draft, state=InvoiceState.FINALIZED, number=number),
    )


def balance(database: Database) -> int:
    assert database.ledger.check() == []
    return database.ledger.balances().get(acme.id, 0)


def test_a_transfer_is_booked_once_for_its_reference(
    payments: InvoicePayments, database: Database, invoice: Invoice
) -> None:
    first = payments.record(invoice, None, "DE-77")
    assert payments.record(invoice, None, "DE-77") == first
    assert payments.record(invoice, 11900, "DE-77") == first
    assert balance(database) == 100 * dollar
    with pytest.raises(Conflict, match="DE-77/2"):
        payments.record(invoice, 5, "DE-77")
    with pytest.raises(Conflict, match="nothing is open"):
        payments.record(invoice, None, "DE-78")


def test_parts_and_what_is_too_much(
    payments: InvoicePayments, database: Database, invoice: Invoice, clock: ManualClock
) -> None:
    payments.record(invoice, 5950, "a")
    assert balance(database) == 50 * dollar
    clock.advance(1.0)
    more = payments.record(invoice, 6950, "b")
    assert (more.credit_nanousd, more.overpaid_nanousd) == (60 * dollar, 10 * dollar)
    assert balance(database) == 110 * dollar
    assert payments.standing(invoice).overpaid == 1000


def test_what_was_recorded_wrongly_is_taken_back_the_last_first(
    payments: InvoicePayments, database: Database, invoice: Invoice, clock: ManualClock
) -> None:
    first = payments.record(invoice, 5950, "a")
    clock.advance(1.0)
    second = payments.record(invoice, None, "b")
    with pytest.raises(Conflict, match=second.id):
        payments.reverse(first, "another's money")
    clock.advance(1.0)
    assert payments.reverse(second, "another's money").state is PaymentState.REVERSED
    with pytest.raises(Conflict, match="reversed already"):
        payments.reverse(second, "again")
    assert balance(database) == 50 * dollar
    payments.record(invoice, None, "b")  # the reference is free again
    assert balance(database) == 100 * dollar


def test_the_provider_takes_what_is_open_and_crosses_with_a_transfer(
    payments: InvoicePayments, database: Database, invoice: Invoice, clock: ManualClock
) -> None:
    provider = Payments(database, clock, Provider())
    provider.agree(acme, "cus_1", "", None)
    payments.record(invoice, 1900, "a")
    assert provider.pay_invoice(invoice).amount_units == 10_000
    clock.advance(1.0)
    payments.record(invoice, None, "b")  # came in meanwhile
    clock.advance(1.0)
    provider.ask_pending()
    stands = payments.standing(invoice)
    assert (stands.open, stands.overpaid) == (0, 10_000)
    assert balance(database) == 200 * dollar, "what was paid twice is the tenant's"
    with pytest.raises(Conflict, match="is paid"):
        provider.pay_invoice(invoice)
    [charged] = [p for p in provider.of_tenant(acme.id) if p.provider == "stripe"]
    with pytest.raises(InvalidRequest, match="only transfers"):
        payments.reverse(charged, "no")


def test_a_transfer_is_told_and_a_draft_takes_none(
    payments: InvoicePayments, database: Database, invoice: Invoice, clock: ManualClock
) -> None:
    hook = Webhook(
        id="whk_1",
        name="hook",
        create_time=0.0,
        url="https://hooks.example",
        events=(EventType.PAYMENT_SUCCEEDED,),
    )
    database.store.create(hook)
    payments.record(invoice, None, "a")
    [delivery] = database.events.due(clock.wall_s(), 9)
    assert delivery.event.data["invoice_id"] == invoice.id
    draft = msgspec.structs.replace(invoice, state=InvoiceState.DRAFT)
    with pytest.raises(Conflict, match="finalize"):
        payments.record(draft, None, "b")
    assert len(database.store.list(Payment)) == 1
