"""Payments of invoices in the books: how far one is paid, transfers that came or were none."""

from collections.abc import Mapping, Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.ids import new_id
from headrace.billing.standing import Standing, booking, standing
from headrace.control.payments.telling import tell
from headrace.spec.invoices import CreditNote, Invoice, InvoiceState
from headrace.spec.payments import Payment, PaymentPurpose, PaymentState, by_transfer
from headrace.storage.database import Database

ledger_reason_length_max = 255


class InvoicePayments:
    """What was paid of invoices; synchronous, safe from any thread."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def standing(self, invoice: Invoice) -> Standing:
        """How far one invoice is paid."""
        return self.standings([invoice])[invoice.id]

    def _standing(self, invoice: Invoice, but: Payment) -> Standing:
        """How it was paid before one of its payments."""
        payments = self._database.store.list(Payment, invoice.tenant_id)
        others = [payment for payment in payments if payment.id != but.id]
        return standing(invoice, self._database.invoices.credit_notes(invoice.id), others)

    def standings(self, invoices: Sequence[Invoice]) -> Mapping[str, Standing]:
        """How far each of some invoices is paid, by its id; drafts have nothing to be paid."""
        final = [each for each in invoices if each.state is InvoiceState.FINALIZED]
        tenants = {invoice.tenant_id for invoice in final}
        payments: dict[str, list[Payment]] = {}
        for payment in self._database.store.list(
            Payment, next(iter(tenants)) if len(tenants) == 1 else None
        ):
            payments.setdefault(payment.invoice_id, []).append(payment)
        notes: dict[str, list[CreditNote]] = {}
        for note in self._database.invoices.credit_notes(*(each.id for each in final)):
            notes.setdefault(note.invoice_id, []).append(note)
        return {
            each.id: standing(each, notes.get(each.id, ()), payments.get(each.id, ()))
            for each in final
        }

    def record(self, invoice: Invoice, units: int | None, reference: str) -> Payment:
        """Book a transfer that came in; the same one again is the one that was booked.

        `units` of the invoice's currency, None: all that is open. What is more than that becomes
        credit. Conflict if the tenant's transfer of this reference was another one."""
        if invoice.state is not InvoiceState.FINALIZED:
            raise Conflict("a draft can't be paid; finalize it first", id=invoice.id)
        name = f"{by_transfer}:{reference}"
        with self._database.transaction():
            self._database.invoices.lock(invoice.id)
            booked = self._database.store.find(Payment, name, invoice.tenant_id)
            if booked is not None:
                return self._same(booked, invoice, units)
            before = self.standing(invoice)
            amount = before.open if units is None else units
            if amount <= 0:
                raise Conflict(
                    f"nothing is open of {invoice.number}; if more came in, say how much, and it "
                    "becomes credit",
                    param="amount",
                )
            now_s = self._clock.wall_s()
            payment = self._database.store.create(
                Payment(
                    id=new_id(Payment.id_prefix, self._clock),
                    name=name,
                    parent_id=invoice.tenant_id,
                    create_time=now_s,
                    purpose=PaymentPurpose.INVOICE,
                    provider=by_transfer,
                    currency=before.currency,
                    amount_units=amount,
                    credit_nanousd=0,
                    invoice_id=invoice.id,
                    state=PaymentState.SUCCEEDED,
                    reference=reference,
                    end_time=now_s,
                )
            )
            payment = self.book(payment)
        tell(self._database, self._clock, payment)
        return payment

    def book(self, payment: Payment) -> Payment:
        """Enter a payment that is kept as succeeded into the ledger; part of a transaction."""
        invoice = self._database.invoices.get(payment.invoice_id)
        booked = booking(invoice, self._standing(invoice, but=payment), payment.amount_units)
        for amount, entry, what in (
            (booked.net_nanousd, payment.id, "payment"),
            (booked.overpaid_nanousd, f"overpaid-{payment.id}", "overpayment"),
        ):
            if amount:
                reason = f"{what} of {invoice.number} by {payment.provider} {payment.reference}"
                self._credit(payment, amount, entry, reason)
        return self._database.store.update(
            msgspec.structs.replace(
                payment,
                place=1 + max((each.place for each in self._paid(payment)), default=0),
                credit_nanousd=booked.net_nanousd + booked.overpaid_nanousd,
                overpaid_nanousd=booked.overpaid_nanousd,
            )
        )

    def reverse(self, payment: Payment, reason: str) -> Payment:
        """Take back a transfer that was recorded by mistake, or that the bank took back.

        Its reference is free again. Only the last payment of an invoice is taken back, since what
        each brings into the books follows from those before it."""
        if payment.provider != by_transfer:
            raise InvalidRequest("only transfers are reversed; refund a recharge", param="payment")
        with self._database.transaction():
            self._database.invoices.lock(payment.invoice_id)
            current = self._database.store.get(Payment, payment.id)
            if current.state is not PaymentState.SUCCEEDED:
                raise Conflict(f"the payment is {current.state} already")
            last = max(self._paid(current), key=lambda each: each.place)
            if last.id != current.id:
                raise Conflict(f"reverse the later payment {last.id} of the invoice first")
            reversed_ = self._database.store.update(
                msgspec.structs.replace(
                    current,
                    name=f"{PaymentState.REVERSED}:{current.id}",
                    state=PaymentState.REVERSED,
                    message=reason,
                    end_time=self._clock.wall_s(),
                )
            )
            if current.credit_nanousd:
                self._credit(
                    current,
                    -current.credit_nanousd,
                    f"reversed-{current.id}",
                    f"reversed: {reason}",
                )
        return reversed_

    def _paid(self, payment: Payment) -> Sequence[Payment]:
        """All that was paid of the same invoice."""
        return [
            other
            for other in self._database.store.list(Payment, payment.parent_id)
            if other.invoice_id == payment.invoice_id and other.state is PaymentState.SUCCEEDED
        ]

    def _credit(self, payment: Payment, amount_nanousd: int, entry: str, reason: str) -> None:
        self._database.ledger.credit(
            payment.parent_id, amount_nanousd, entry, reason[:ledger_reason_length_max]
        )

    @staticmethod
    def _same(booked: Payment, invoice: Invoice, units: int | None) -> Payment:
        """The transfer that was booked, if that is what is meant."""
        if booked.invoice_id == invoice.id and units in (None, booked.amount_units):
            return booked
        raise Conflict(
            f"the transfer {booked.reference} was recorded already, as {booked.id}; where one "
            f"pays several invoices, number its parts: {booked.reference}/2",
            param="reference",
        )
