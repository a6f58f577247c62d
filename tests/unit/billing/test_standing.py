"""How far an invoice is paid: whatever the parts, the books get all of the net and no more."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.billing.payable import payable_in
from headrace.billing.standing import Paid, booking, standing
from headrace.spec.invoices import (
    CreditNote,
    Invoice,
    InvoiceState,
    InvoiceTax,
    Party,
    Seller,
)
from headrace.spec.payments import Payment, PaymentPurpose, PaymentState

dollar = 10**9
cent = dollar // 100
mill = Party(name="Mill GmbH")
seller = Seller(
    id="sel_1", name="seller", create_time=0.0, party=mill, exchange_rates={"EUR": 920_000}
)


def final(net: int, tax: int, from_credit: int = 0, currency: str = "") -> Invoice:
    return Invoice(
        id="inv_1",
        tenant_id="ten_1",
        tenant_name="acme",
        state=InvoiceState.FINALIZED,
        number="INV-1",
        first_day="2026-11-01",
        last_day="2026-11-30",
        seller=mill,
        buyer=Party(name="acme"),
        lines=(),
        subtotal_nanousd=net,
        rounding_nanousd=0,
        taxes=(InvoiceTax(name="VAT", rate_ppm=190_000, amount_nanousd=tax),),
        total_nanousd=net + tax,
        paid_from_credit_nanousd=from_credit,
        due_nanousd=net + tax - from_credit,
        unrated_requests=0,
        payable=payable_in(currency, seller, net, tax, from_credit),
    )


def noted(net: int, tax: int) -> CreditNote:
    return CreditNote(
        id="crn_1",
        number="CN-1",
        invoice_id="inv_1",
        invoice_number="INV-1",
        tenant_id="ten_1",
        issue_day="2026-12-01",
        reason="an outage",
        seller=mill,
        buyer=mill,
        net_nanousd=net,
        tax_nanousd=tax,
        total_nanousd=net + tax,
    )


def pay(invoice: Invoice, parts: list[int], notes: tuple[CreditNote, ...] = ()) -> list[Payment]:
    """Book parts, one after the other."""
    paid: list[Payment] = []
    for number, units in enumerate(parts):
        booked = booking(invoice, standing(invoice, notes, paid), units)
        paid.append(
            Payment(
                id=f"pay_{number}",
                name=f"pay_{number}",
                parent_id="ten_1",
                create_time=0.0,
                purpose=PaymentPurpose.INVOICE,
                provider="transfer",
                currency="USD",
                amount_units=units,
                credit_nanousd=booked.net_nanousd + booked.overpaid_nanousd,
                overpaid_nanousd=booked.overpaid_nanousd,
                invoice_id="inv_1",
                state=PaymentState.SUCCEEDED,
            )
        )
    return paid


cents = st.integers(0, 10_000_000)
parts = st.lists(st.integers(1, 3_000_000), max_size=6)


@given(cents, st.integers(0, 25), cents, parts, st.sampled_from(["", "EUR"]))
def test_parts_bring_all_of_the_net_into_the_books_and_the_rest_is_overpaid(
    net: int, tax_percent: int, from_credit: int, parts: list[int], currency: str
) -> None:
    prepaid = min(net, from_credit)
    invoice = final(net * cent, net * tax_percent // 100 * cent, prepaid * cent, currency)
    paid = pay(invoice, parts)
    after = standing(invoice, (), paid)
    assert after.paid == sum(parts)
    assert after.open == max(0, after.due - sum(parts))
    assert 0 <= after.credited_net_nanousd <= after.owed_net_nanousd
    if after.due and not after.open:
        assert after.credited_net_nanousd == (net - prepaid) * cent
    overpaid = sum(payment.overpaid_nanousd for payment in paid)
    assert (overpaid > 0) == (after.overpaid > 0)
    if not currency:
        assert overpaid == after.overpaid * cent


def test_a_part_credits_its_share_of_the_net_and_tax_is_nobodys_credit() -> None:
    invoice = final(100 * dollar, 19 * dollar)
    [half] = pay(invoice, [5950])
    assert half.credit_nanousd == 50 * dollar
    stands = standing(invoice, (), [half])
    assert (stands.state, stands.open) == (Paid.PARTLY, 5950)


def test_a_credit_note_lowers_what_is_open_and_what_the_rest_of_it_credits() -> None:
    invoice, notes = final(100 * dollar, 19 * dollar), (noted(40 * dollar, 7_600_000_000),)
    stands = standing(invoice, notes, ())
    assert (stands.owed, stands.open, stands.credited) == (7140, 7140, 4760)
    [rest] = pay(invoice, [7140], notes)
    assert (rest.credit_nanousd, rest.overpaid_nanousd) == (60 * dollar, 0)
    assert standing(invoice, notes, [rest]).state is Paid.PAID


def test_a_note_of_all_leaves_nothing_open_and_what_was_paid_before_is_overpaid() -> None:
    invoice, notes = (
        final(100 * dollar, 19 * dollar, currency="EUR"),
        (noted(100 * dollar, 19 * dollar),),
    )
    assert standing(invoice, notes, ()).open == 0
    stands = standing(invoice, notes, pay(invoice, [5000]))
    assert (stands.state, stands.overpaid) == (Paid.OVERPAID, 5000)


def test_an_overpayment_in_euros_is_credit_in_dollars_at_the_invoices_rate() -> None:
    invoice = final(100 * dollar, 0, currency="EUR")
    [payment] = pay(invoice, [9200 + 920])
    assert (payment.credit_nanousd, payment.overpaid_nanousd) == (110 * dollar, 10 * dollar)


def test_only_what_succeeded_counts() -> None:
    invoice = final(100 * dollar, 0)
    [payment] = pay(invoice, [10_000])
    for state in (PaymentState.PENDING, PaymentState.FAILED, PaymentState.REVERSED):
        other = msgspec.structs.replace(payment, state=state)
        assert standing(invoice, (), [other]).state is Paid.OPEN
