"""Payments from order to ledger: each is kept before the provider hears of it, and booked once.

A payment that is kept is asked for until the provider answers, also by the next control plane: its
id is the idempotency key there, and the ledger's entry is named after it. A refund leaves the
balance before the provider is asked, and comes back if the provider declines.
"""

import logging
from collections.abc import Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest, Unavailable
from headrace.base.ids import first_id, new_id
from headrace.base.money import format_usd, nanousd_per_cent
from headrace.control.payments.invoice_payments import InvoicePayments
from headrace.control.payments.provider import (
    Answer,
    ChargeOrder,
    PaymentProvider,
    RefundOrder,
    Verdict,
)
from headrace.control.payments.telling import tell
from headrace.spec.invoices import Invoice, InvoiceState
from headrace.spec.payments import (
    Payment,
    PaymentAgreement,
    PaymentPurpose,
    PaymentState,
    Recharge,
)
from headrace.spec.tenancy import Tenant
from headrace.storage.database import Database

logger = logging.getLogger(__name__)

agreement_name = "agreement"  # a tenant has one
day_s = 86_400.0
backoff_first_s = 5.0
backoff_max_s = 3600.0
unanswered_max_s = 20 * 3600.0  # providers forget idempotency keys after a day
recharge_pause_s = 3600.0  # after one that failed


class Payments:
    """Takes and gives back money; synchronous, safe from any thread."""

    def __init__(self, database: Database, clock: Clock, provider: PaymentProvider | None) -> None:
        self._database = database
        self._clock = clock
        self._provider = provider
        self._invoices = InvoicePayments(database, clock)
        # Up to this id every payment has ended and is older than a day, so that looking costs no
        # more as years of them add up. A clock that is a day behind would be overlooked till the
        # next start.
        self._ended_until = ""

    def agreement(self, tenant_id: str) -> PaymentAgreement | None:
        """How a tenant pays; None: not by a provider."""
        return self._database.store.find(PaymentAgreement, agreement_name, tenant_id)

    def agree(
        self, tenant: Tenant, customer: str, payment_method: str, recharge: Recharge | None
    ) -> PaymentAgreement:
        """Say how a tenant pays from now on."""
        self._configured()
        before = self.agreement(tenant.id)
        if before is not None:
            return self._database.store.update(
                msgspec.structs.replace(
                    before, customer=customer, payment_method=payment_method, recharge=recharge
                )
            )
        return self._database.store.create(
            PaymentAgreement(
                id=new_id(PaymentAgreement.id_prefix, self._clock),
                name=agreement_name,
                parent_id=tenant.id,
                create_time=self._clock.wall_s(),
                customer=customer,
                payment_method=payment_method,
                recharge=recharge,
            )
        )

    def pay_invoice(self, invoice: Invoice) -> Payment:
        """Order what is open of a final invoice; Conflict if that is under way or done."""
        if invoice.state is not InvoiceState.FINALIZED:
            raise Conflict("a draft can't be paid; finalize it first", id=invoice.id)
        with self._database.transaction():
            self._database.invoices.lock(invoice.id)
            for payment in self.of_tenant(invoice.tenant_id):
                if payment.invoice_id != invoice.id:
                    continue
                if payment.state is PaymentState.PENDING:
                    raise Conflict(f"the payment {payment.id} of it is pending")
                if payment.state is PaymentState.UNKNOWN:
                    raise Conflict(
                        f"nobody knows what became of the payment {payment.id} of it; ask "
                        f"{payment.provider}, then say so with `headrace payments resolve`"
                    )
            standing = self._invoices.standing(invoice)
            if standing.paid and not standing.open:
                raise Conflict(f"the invoice {invoice.number} is paid")
            return self._ordered(
                invoice.tenant_id,
                PaymentPurpose.INVOICE,
                currency=standing.currency,
                amount_units=standing.open,
                credit_nanousd=0,  # known when it is booked
                invoice_id=invoice.id,
            )

    def refund(self, payment: Payment, amount_nanousd: int) -> Payment:
        """Order that some of a recharge is given back; it leaves the balance at once.

        InvalidRequest if it is more than what is left of the payment or in the balance."""
        if payment.purpose is not PaymentPurpose.RECHARGE:
            raise InvalidRequest(
                "recharges are refunded; correct an invoice with `headrace invoices credit`",
                param="payment",
            )
        if payment.state is not PaymentState.SUCCEEDED:
            raise Conflict(f"the payment is {payment.state}; only what succeeded is refunded")
        with self._database.transaction():
            before = sum(
                other.credit_nanousd
                for other in self.of_tenant(payment.parent_id)
                if other.refunded_id == payment.id
                and other.state is not PaymentState.FAILED  # an unknown one may have gone through
            )
            balance = self._database.ledger.balances().get(payment.parent_id, 0)
            most = min(payment.credit_nanousd - before, balance)
            if not 0 < amount_nanousd <= most or amount_nanousd % nanousd_per_cent:
                raise InvalidRequest(
                    "a refund is in whole cents, over 0 and at most what is left of the payment "
                    f"and in the balance: {format_usd(max(0, most - most % nanousd_per_cent))} "
                    "dollars",
                    param="amount_usd",
                )
            refund = self._ordered(
                payment.parent_id,
                PaymentPurpose.REFUND,
                currency=payment.currency,
                amount_units=amount_nanousd // nanousd_per_cent,
                credit_nanousd=amount_nanousd,
                refunded_id=payment.id,
            )
            self._database.ledger.credit(
                refund.parent_id, -amount_nanousd, refund.id, f"refund of {payment.id}"
            )
        return refund

    def resolve(self, payment: Payment, *, succeeded: bool, reference: str, reason: str) -> Payment:
        """Say what the provider told a person of a payment that is unknown, and book it.

        Conflict if it is not unknown, also if somebody else said so at the same moment."""
        if payment.state is not PaymentState.UNKNOWN:
            raise Conflict(f"the payment is {payment.state}; only what is unknown is resolved")
        state = PaymentState.SUCCEEDED if succeeded else PaymentState.FAILED
        verdict = Verdict.SUCCEEDED if succeeded else Verdict.DECLINED
        return self._end(payment, state, Answer(verdict, reference, reason))

    def look(self) -> None:
        """Order recharges and ask for what is pending, as is due now."""
        if self._provider is not None and self._database.store.list(PaymentAgreement):
            self.recharge_due()
            self.ask_pending()

    def recharge_due(self) -> list[Payment]:
        """Order the recharges of balances that got low; those that were ordered."""
        if self._provider is None:
            return []
        balances = self._database.ledger.balances()
        low = [
            (agreement.parent_id, agreement.recharge)
            for agreement in self._database.store.list(PaymentAgreement)
            if agreement.recharge is not None
            and balances.get(agreement.parent_id, 0) < agreement.recharge.below_nanousd
        ]
        recent = self._recent() if low else ()
        return [
            self._ordered(
                tenant_id,
                PaymentPurpose.RECHARGE,
                currency="USD",
                amount_units=recharge.amount_nanousd // nanousd_per_cent,
                credit_nanousd=recharge.amount_nanousd,
            )
            for tenant_id, recharge in low
            if self._may_recharge(
                [each for each in recent if each.parent_id == tenant_id], recharge
            )
        ]

    def ask_pending(self) -> int:
        """Ask the provider for each payment whose time has come; how many ended."""
        if self._provider is None:
            return 0
        now_s = self._clock.wall_s()
        due = [
            payment
            for payment in self._recent()
            if payment.state is PaymentState.PENDING and payment.next_attempt_time <= now_s
        ]
        return sum(self._ask(payment).state is not PaymentState.PENDING for payment in due)

    def of_tenant(self, tenant_id: str | None) -> Sequence[Payment]:
        """The payments of a tenant, or of all, the oldest first."""
        found = self._database.store.list(Payment, tenant_id)
        return sorted(found, key=lambda payment: (payment.create_time, payment.id))

    def _recent(self) -> Sequence[Payment]:
        """Every payment that is pending or of the last day, with a few others, the oldest first."""
        a_day_ago = first_id(Payment.id_prefix, self._clock.wall_s() - day_s)
        found = self._database.store.page(Payment, after=self._ended_until, limit=None)
        for payment in found:
            if payment.state is PaymentState.PENDING or payment.id >= a_day_ago:
                break
            self._ended_until = payment.id
        return found

    def _may_recharge(self, payments: Sequence[Payment], recharge: Recharge) -> bool:
        """Whether a tenant of these recent payments may be charged now."""
        now_s = self._clock.wall_s()
        recent = [
            payment
            for payment in payments
            if payment.purpose is PaymentPurpose.RECHARGE
            and (payment.state is PaymentState.PENDING or payment.create_time > now_s - day_s)
        ]
        if any(payment.state is PaymentState.PENDING for payment in recent):
            return False
        failed_s = [
            payment.end_time or payment.create_time
            for payment in recent
            if payment.state in (PaymentState.FAILED, PaymentState.UNKNOWN)
        ]
        if failed_s and now_s < max(failed_s) + recharge_pause_s:
            return False
        return len(recent) < recharge.a_day_max

    def _ordered(
        self,
        tenant_id: str,
        purpose: PaymentPurpose,
        *,
        currency: str,
        amount_units: int,
        credit_nanousd: int,
        invoice_id: str = "",
        refunded_id: str = "",
    ) -> Payment:
        provider = self._configured()
        if amount_units <= 0:
            raise InvalidRequest("nothing is due", param="invoice")
        if self.agreement(tenant_id) is None:
            raise Conflict(
                "the provider does not know this tenant; name its customer with "
                "`headrace payments agree`"
            )
        payment_id = new_id(Payment.id_prefix, self._clock)
        return self._database.store.create(
            Payment(
                id=payment_id,
                name=payment_id,
                parent_id=tenant_id,
                create_time=self._clock.wall_s(),
                purpose=purpose,
                provider=provider.name,
                currency=currency,
                amount_units=amount_units,
                credit_nanousd=credit_nanousd,
                invoice_id=invoice_id,
                refunded_id=refunded_id,
            )
        )

    def _ask(self, payment: Payment) -> Payment:
        """Ask once, and keep what came of it."""
        try:
            answer = self._asked(payment)
        except Unavailable as error:
            return self._put_off(payment, error.message)
        if answer.verdict is Verdict.PROCESSING:
            return self._put_off(payment, "the provider is still at it", answer.reference)
        state = PaymentState.FAILED
        if answer.verdict is Verdict.SUCCEEDED:
            state = PaymentState.SUCCEEDED
        return self._end(payment, state, answer)

    def _asked(self, payment: Payment) -> Answer:
        provider = self._configured()
        if payment.purpose is PaymentPurpose.REFUND:
            refunded = self._database.store.get(Payment, payment.refunded_id)
            return provider.refund(
                RefundOrder(
                    idempotency_key=payment.id,
                    reference=refunded.reference,
                    amount_units=payment.amount_units,
                )
            )
        agreement = self.agreement(payment.parent_id)
        if agreement is None:
            return Answer(Verdict.DECLINED, message="the tenant no longer pays by the provider")
        return provider.charge(
            ChargeOrder(
                idempotency_key=payment.id,
                customer=agreement.customer,
                payment_method=agreement.payment_method,
                amount_units=payment.amount_units,
                currency=payment.currency,
                description=f"{payment.purpose} {payment.invoice_id or payment.id}",
            )
        )

    def _put_off(self, payment: Payment, message: str, reference: str = "") -> Payment:
        """Try again later; after most of a day nobody knows, and a person is to ask."""
        now_s = self._clock.wall_s()
        if now_s - payment.create_time > unanswered_max_s:
            unknown = (
                f"{message}; ask {payment.provider} for the payment {payment.id}, then say what "
                "became of it with `headrace payments resolve`"
            )
            return self._end(
                payment, PaymentState.UNKNOWN, Answer(Verdict.PROCESSING, reference, unknown)
            )
        delay_s = min(backoff_max_s, backoff_first_s * 2 ** min(payment.attempts, 16))
        return self._database.store.update(
            msgspec.structs.replace(
                payment,
                attempts=payment.attempts + 1,
                next_attempt_time=now_s + delay_s,
                reference=reference or payment.reference,
                message=message,
            )
        )

    def _end(self, payment: Payment, state: PaymentState, answer: Answer) -> Payment:
        """Keep the end of a payment and book it, together or not at all; then tell."""
        with self._database.transaction():
            if payment.invoice_id:
                self._database.invoices.lock(payment.invoice_id)
            ended = self._database.store.update(
                msgspec.structs.replace(
                    payment,
                    state=state,
                    attempts=payment.attempts + 1,
                    reference=answer.reference or payment.reference,
                    message=answer.message,
                    end_time=self._clock.wall_s(),
                )
            )
            ended = self._booked(ended)
        tell(self._database, self._clock, ended)
        return ended

    def _booked(self, ended: Payment) -> Payment:
        """What came of a payment in the ledger; a refund left the balance when it was ordered."""
        is_refund = ended.purpose is PaymentPurpose.REFUND
        if is_refund and ended.state is PaymentState.FAILED:
            self._database.ledger.credit(
                ended.parent_id,
                ended.credit_nanousd,
                f"declined-{ended.id}",
                "a refund that was declined",
            )
        if is_refund or ended.state is not PaymentState.SUCCEEDED:
            return ended
        if ended.purpose is PaymentPurpose.INVOICE:
            return self._invoices.book(ended)
        self._database.ledger.credit(
            ended.parent_id, ended.credit_nanousd, ended.id, str(ended.purpose)
        )
        return ended

    def _configured(self) -> PaymentProvider:
        if self._provider is None:
            raise Conflict(
                "no payment provider is configured; name one in the file of HEADRACE_PAYMENTS_FILE"
            )
        return self._provider
