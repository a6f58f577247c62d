"""Money by a provider, against a server that speaks Stripe's API: each payment counts once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.money import nanousd_per_usd
from headrace.control.payments.payments import Payments
from headrace.control.payments.stripe_provider import StripeProvider
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.sim.stripe_server import StripeServer, running_stripe
from headrace.spec.events import EventType, Webhook
from headrace.spec.invoices import Invoice, InvoiceState, Party
from headrace.spec.payments import Payment, PaymentState, Recharge
from headrace.spec.tenancy import Tenant
from headrace.storage import Database

pytest.importorskip("stripe", reason="the extra `payments` is not installed")

dollar = nanousd_per_usd
acme = Tenant(id="ten_acme", name="acme", create_time=0.0)
recharge = Recharge(below_nanousd=5 * dollar, amount_nanousd=20 * dollar, a_day_max=2)


@pytest.fixture
def stripe() -> Iterator[StripeServer]:
    with running_stripe() as server:
        yield server


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
def payments(database: Database, clock: ManualClock, stripe: StripeServer) -> Payments:
    return Payments(database, clock, StripeProvider(stripe.api_key, stripe.url))


def only(payments: Payments) -> Payment:
    [payment] = payments.of_tenant(acme.id)
    return payment


def balance(database: Database) -> int:
    return database.ledger.balances().get(acme.id, 0)


def test_what_ended_long_ago_is_not_read_again(
    payments: Payments,
    database: Database,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    read: list[int] = []
    page = database.store.page

    def counted(*arguments: Any, **named: Any) -> Any:
        found = page(*arguments, **named)
        read.append(len(found))
        return found

    monkeypatch.setattr(database.store, "page", counted)
    for number in range(20):  # one a day
        payments.look()
        database.ledger.credit(acme.id, -balance(database), f"used-{number}", "used")
        clock.advance(25 * 3600.0)
    payments.look()
    assert len(payments.of_tenant(acme.id)) == 21
    assert {each.state for each in payments.of_tenant(acme.id)} == {PaymentState.SUCCEEDED}
    assert max(read) <= 3


def test_a_pending_payment_is_found_however_old_it_is(
    payments: Payments, database: Database, clock: ManualClock, stripe: StripeServer
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    payments.look()
    database.ledger.credit(acme.id, -balance(database), "used", "used")
    ordered = payments.recharge_due()
    clock.advance(10 * 24 * 3600.0)  # the control plane was down
    for looking in (
        payments,
        Payments(database, clock, StripeProvider(stripe.api_key, stripe.url)),
    ):
        assert looking.recharge_due() == []  # one is under way
    assert payments.ask_pending() == len(ordered) == 1


def test_a_low_balance_is_recharged_once(
    payments: Payments, database: Database, stripe: StripeServer
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    payments.look()
    payments.look()
    assert only(payments).state is PaymentState.SUCCEEDED
    assert balance(database) == 20 * dollar
    assert [intent["amount"] for intent in stripe.intents.values()] == [2000]
    assert database.ledger.check() == []


def test_an_answer_that_was_lost_is_asked_for_again_and_nobody_pays_twice(
    payments: Payments, database: Database, stripe: StripeServer, clock: ManualClock
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    stripe.fail_next = 1
    payments.look()
    assert only(payments).state is PaymentState.PENDING
    assert balance(database) == 0
    payments.look()  # not yet
    assert only(payments).attempts == 1
    clock.advance(10.0)
    payments.look()
    assert only(payments).state is PaymentState.SUCCEEDED
    assert balance(database) == 20 * dollar
    assert len(stripe.intents) == 1


def test_a_payment_that_is_processed_is_waited_for(
    payments: Payments, database: Database, clock: ManualClock
) -> None:
    payments.agree(acme, "cus_slow", "", recharge)
    payments.look()
    assert (only(payments).state, balance(database)) == (PaymentState.PENDING, 0)
    clock.advance(10.0)
    payments.look()
    assert (only(payments).state, balance(database)) == (PaymentState.SUCCEEDED, 20 * dollar)


def test_a_declined_recharge_pauses_and_is_told(
    payments: Payments, database: Database, clock: ManualClock
) -> None:
    webhook = Webhook(
        id="whk_1",
        name="hook",
        create_time=0.0,
        url="https://hooks.example",
        events=(EventType.PAYMENT_FAILED,),
    )
    database.store.create(webhook)
    payments.agree(acme, "cus_declined", "", recharge)
    payments.look()
    payments.look()
    assert only(payments).state is PaymentState.FAILED
    assert balance(database) == 0
    [delivery] = database.events.due(clock.wall_s(), 9)
    assert delivery.event.type is EventType.PAYMENT_FAILED
    clock.advance(3601.0)
    payments.look()
    clock.advance(3601.0)
    payments.look()
    assert len(payments.of_tenant(acme.id)) == 2, "at most so many a day"


def test_a_wrong_key_loses_no_payment_and_after_a_day_a_person_is_asked(
    database: Database, clock: ManualClock, stripe: StripeServer
) -> None:
    payments = Payments(database, clock, StripeProvider("sk_test_wrong", stripe.url))
    payments.agree(acme, "cus_1", "", recharge)
    payments.look()
    assert "configured key" in only(payments).message
    clock.advance(21 * 3600.0)
    payments.look()
    assert only(payments).state is PaymentState.UNKNOWN
    assert only(payments).id in only(payments).message


def make_unknown(database: Database, payment: Payment) -> Payment:
    """As a payment is that nobody answered for a day."""
    return database.store.update(
        msgspec.structs.replace(payment, state=PaymentState.UNKNOWN, end_time=1.0)
    )


def test_a_person_says_what_became_of_an_unknown_recharge_and_it_is_booked_once(
    payments: Payments, database: Database, stripe: StripeServer
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    payments.recharge_due()
    unknown = make_unknown(database, only(payments))
    ended = payments.resolve(unknown, succeeded=True, reference="pi_7", reason="asked Stripe")
    assert (ended.state, ended.reference) == (PaymentState.SUCCEEDED, "pi_7")
    assert balance(database) == 20 * dollar
    for succeeded in (True, False):
        with pytest.raises(Conflict, match="only what is unknown"):
            payments.resolve(ended, succeeded=succeeded, reference="", reason="again")
        with pytest.raises(Conflict):  # by somebody who has not seen yet that it ended
            payments.resolve(unknown, succeeded=succeeded, reference="", reason="again")
    assert balance(database) == 20 * dollar
    assert database.ledger.check() == []
    assert not stripe.intents


@pytest.mark.parametrize(("succeeded", "left"), [(True, 12), (False, 20)])
def test_a_refund_that_is_unknown_counts_until_somebody_says_what_became_of_it(
    payments: Payments, database: Database, succeeded: bool, left: int
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    payments.look()
    paid = only(payments)
    database.ledger.credit(acme.id, 100 * dollar, "other", "a grant")
    unknown = make_unknown(database, payments.refund(paid, 8 * dollar))
    with pytest.raises(InvalidRequest, match=r"at most .* 12.00"):
        payments.refund(paid, 13 * dollar)
    payments.resolve(unknown, succeeded=succeeded, reference="", reason="asked Stripe")
    assert balance(database) == (100 + left) * dollar
    with pytest.raises(InvalidRequest, match=rf"at most .* {left}.00"):
        payments.refund(paid, 21 * dollar)
    assert database.ledger.check() == []


def test_a_refund_leaves_the_balance_at_once_and_comes_back_if_it_is_declined(
    payments: Payments, database: Database, stripe: StripeServer
) -> None:
    payments.agree(acme, "cus_1", "", recharge)
    payments.look()
    paid = only(payments)
    with pytest.raises(InvalidRequest, match=r"at most .* 20.00"):
        payments.refund(paid, 21 * dollar)
    payments.refund(paid, 8 * dollar)
    assert balance(database) == 12 * dollar
    with pytest.raises(InvalidRequest, match=r"at most .* 12.00"):
        payments.refund(paid, 13 * dollar)
    payments.ask_pending()
    assert [refund["amount"] for refund in stripe.refunds.values()] == [800]
    stripe.intents[paid.reference]["amount"] = 0  # given back by hand at the provider
    payments.refund(paid, 2 * dollar)
    payments.ask_pending()
    assert balance(database) == 12 * dollar
    assert database.ledger.check() == []


def test_an_invoice_is_paid_once_and_credits_what_it_billed(
    payments: Payments, database: Database, stripe: StripeServer
) -> None:
    payments.agree(acme, "cus_1", "pm_1", None)
    draft = Invoice(
        id="inv_1",
        tenant_id=acme.id,
        tenant_name="acme",
        first_day="2026-11-01",
        last_day="2026-11-30",
        seller=Party(name="Compute GmbH"),
        buyer=Party(name="acme"),
        lines=(),
        subtotal_nanousd=10 * dollar,
        rounding_nanousd=0,
        taxes=(),
        total_nanousd=12 * dollar,
        paid_from_credit_nanousd=4 * dollar,
        due_nanousd=8 * dollar,
        unrated_requests=0,
    )
    with pytest.raises(Conflict, match="finalize"):
        payments.pay_invoice(draft)
    database.invoices.save_draft(draft)
    final = database.invoices.number(
        draft,
        "INV",
        lambda number: msgspec.structs.replace(draft, state=InvoiceState.FINALIZED, number=number),
    )
    payments.pay_invoice(final)
    with pytest.raises(Conflict, match="pending"):
        payments.pay_invoice(final)
    [ordered] = payments.of_tenant(acme.id)
    unknown = make_unknown(database, ordered)
    with pytest.raises(Conflict, match="payments resolve"):
        payments.pay_invoice(final)
    payments.resolve(unknown, succeeded=False, reference="", reason="asked Stripe")
    payments.pay_invoice(final)
    payments.ask_pending()
    assert [intent["amount"] for intent in stripe.intents.values()] == [800]
    assert balance(database) == 6 * dollar  # the tax is nobody's credit
    with pytest.raises(Conflict, match="is paid"):
        payments.pay_invoice(final)


def test_without_a_provider_the_error_says_what_to_configure(
    database: Database, clock: ManualClock
) -> None:
    payments = Payments(database, clock, None)
    with pytest.raises(Conflict, match="HEADRACE_PAYMENTS_FILE"):
        payments.agree(acme, "cus_1", "", recharge)
    payments.look()
