"""What is still open of a final invoice: what was due, less credit notes and payments.

Money is counted in the smallest unit of the currency that the buyer pays in. The books hold net
amounts, in dollars; so a payment credits the tenant's account with its share of what is owed net,
and the last one with the rest of it, to the nano-dollar. What comes in beyond what is open is the
tenant's, as plain credit.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headrace.base.money import divided, nanousd_per_cent, nanousd_per_usd
from headrace.spec.invoices import CreditNote, Invoice, rate_scale
from headrace.spec.payments import Payment, PaymentState

usd_digits = 2


class Paid(StrEnum):
    """How far an invoice is paid, in a word."""

    OPEN = "open"
    PARTLY = "partly paid"
    PAID = "paid"
    OVERPAID = "overpaid"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far an invoice is paid, in the smallest unit of its currency."""

    currency: str  # ISO 4217
    digits: int  # after the point
    due: int  # as the invoice says
    credited: int  # of that, taken back by credit notes
    paid: int  # by transfers and the provider
    owed_net_nanousd: int  # of what is due after credit notes, what the books know
    credited_net_nanousd: int  # of that, what payments brought into the books

    @property
    def owed(self) -> int:
        """What has to be paid in all."""
        return self.due - self.credited

    @property
    def open(self) -> int:
        """What has to be paid still."""
        return max(0, self.owed - self.paid)

    @property
    def overpaid(self) -> int:
        """What was paid beyond what was owed."""
        return max(0, self.paid - self.owed)

    @property
    def state(self) -> Paid:
        """All of it in a word; what nothing is due of is paid."""
        if self.overpaid:
            return Paid.OVERPAID
        if not self.open:
            return Paid.PAID
        return Paid.PARTLY if self.paid else Paid.OPEN


class Booking(msgspec.Struct, frozen=True):
    """What a payment brings into the books."""

    net_nanousd: int  # its share of what is owed net
    overpaid_nanousd: int  # plain credit


def standing(
    invoice: Invoice, notes: Sequence[CreditNote], payments: Sequence[Payment]
) -> Standing:
    """How an invoice stands; of the payments, those of it that succeeded count."""
    paid = [
        payment
        for payment in payments
        if payment.invoice_id == invoice.id and payment.state is PaymentState.SUCCEEDED
    ]
    net = max(0, invoice.net_nanousd - invoice.paid_from_credit_nanousd)
    tax = invoice.due_nanousd - net
    owed_net = max(0, net - sum(note.net_nanousd for note in notes))
    owed_tax = max(0, tax - sum(note.tax_nanousd for note in notes))
    due = in_units(invoice, invoice.due_nanousd) if invoice.payable is None else invoice.payable.due
    credited = in_units(invoice, net - owed_net) + in_units(invoice, tax - owed_tax)
    return Standing(
        currency=currency_of(invoice),
        digits=digits_of(invoice),
        due=due,
        credited=min(credited, due) if owed_net + owed_tax else due,
        paid=sum(payment.amount_units for payment in paid),
        owed_net_nanousd=owed_net,
        credited_net_nanousd=sum(p.credit_nanousd - p.overpaid_nanousd for p in paid),
    )


def booking(invoice: Invoice, before: Standing, units: int) -> Booking:
    """What a payment of so many units brings into the books, after what was paid before."""
    used = min(units, before.open)
    paid = before.paid + used
    target = before.owed_net_nanousd
    if paid < before.owed:
        target = divided(target * paid, before.owed)
    return Booking(
        net_nanousd=max(0, target - before.credited_net_nanousd) if used else 0,
        overpaid_nanousd=in_nanousd(invoice, units - used),
    )


def currency_of(invoice: Invoice) -> str:
    """What its buyer pays in."""
    return "USD" if invoice.payable is None else invoice.payable.currency


def digits_of(invoice: Invoice) -> int:
    """How many digits that currency has after the point."""
    return usd_digits if invoice.payable is None else invoice.payable.digits


def in_units(invoice: Invoice, amount_nanousd: int) -> int:
    """Nano-dollars in the smallest unit of what is paid in, at the invoice's rate."""
    if invoice.payable is None:
        return divided(amount_nanousd, nanousd_per_cent)
    scale = invoice.payable.rate_millionths * 10**invoice.payable.digits
    return divided(amount_nanousd * scale, rate_scale * nanousd_per_usd)


def in_nanousd(invoice: Invoice, units: int) -> int:
    """The other way round."""
    if invoice.payable is None:
        return units * nanousd_per_cent
    scale = invoice.payable.rate_millionths * 10**invoice.payable.digits
    return divided(units * rate_scale * nanousd_per_usd, scale)
