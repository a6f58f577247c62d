"""Routes for payments: how tenants pay, invoices paid, recharges, refunds."""

import datetime
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints

from headrace.base.errors import InvalidRequest
from headrace.base.money import nanousd_per_cent, parse_usd
from headrace.billing.payable import currency_digits
from headrace.billing.standing import currency_of, digits_of
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.invoice_views import decimal_of
from headrace.control.admin.pages import Page, page_items_default, page_items_max, page_of
from headrace.control.admin.references import Reference
from headrace.control.admin.values import (
    Dollars,
    Money,
    RequestBody,
    dollars_max,
    moment,
    optional_moment,
)
from headrace.control.payments.invoice_payments import InvoicePayments
from headrace.control.payments.payments import Payments
from headrace.spec.invoices import Invoice
from headrace.spec.payments import Payment, PaymentAgreement, Recharge
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant

router = APIRouter()

ProviderId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=255)]

BankReference = Annotated[
    str, StringConstraints(min_length=1, max_length=140, strip_whitespace=True)
]


class RechargeFields(RequestBody):
    """Credit that is bought by itself when the balance gets low."""

    below_usd: Dollars
    amount_usd: Dollars
    a_day_max: Annotated[int, Field(ge=1, le=100)] = 3

    def recharge(self) -> Recharge:
        """The value that is kept; InvalidRequest if it is none."""
        below, amount = parse_usd(self.below_usd), parse_usd(self.amount_usd)
        if amount <= 0 or amount % nanousd_per_cent:
            raise InvalidRequest("a recharge is in whole cents, over 0 dollars", param="recharge")
        return Recharge(below, amount, self.a_day_max)


class AgreementFields(RequestBody):
    """How a tenant pays: what the provider knows it by."""

    customer: ProviderId
    payment_method: ProviderId | None = None  # None: the customer's default
    recharge: RechargeFields | None = None


class RechargeView(BaseModel):
    """A recharge."""

    below: Money
    amount: Money
    a_day_max: int


class AgreementView(BaseModel):
    """How a tenant pays."""

    tenant_id: str
    customer: str
    payment_method: str | None
    recharge: RechargeView | None


class PaymentView(BaseModel):
    """A payment."""

    id: str
    tenant_id: str
    purpose: str
    state: str
    provider: str
    reference: str
    currency: str
    amount_units: int  # of the currency's smallest unit
    amount: str  # the same as a decimal number
    credit: Money  # what the balance got, or lost by a refund
    overpaid: Money  # of that, what was more than was open of the invoice
    invoice_id: str | None
    refunded_id: str | None
    message: str
    create_time: datetime.datetime
    end_time: datetime.datetime | None


class PaymentQuery(BaseModel):
    """Which payments."""

    limit: Annotated[int, Field(ge=1, le=page_items_max)] = page_items_default
    after: Annotated[str, Field(max_length=64, description="`next` of the page before.")] = ""
    tenant: Annotated[str, Field(max_length=200)] | None = None
    invoice: Annotated[str, Field(max_length=200)] | None = None


class PaymentCreate(RequestBody):
    """Pay an invoice, by its number or id."""

    invoice: Reference


class TransferCreate(RequestBody):
    """A transfer that came in for an invoice."""

    reference: Annotated[
        str, StringConstraints(min_length=1, max_length=140, strip_whitespace=True)
    ]
    # Of the currency that the buyer pays in; null: all that is open.
    amount: Annotated[Decimal, Field(gt=0, le=dollars_max)] | None = None


class TransferReverse(RequestBody):
    """Why a transfer is taken back."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class PaymentResolve(RequestBody):
    """What the provider told a person of a payment whose end is unknown."""

    succeeded: bool
    reference: Annotated[str, StringConstraints(max_length=200)] = ""  # the provider's own id
    reason: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class RefundCreate(RequestBody):
    """Give back some of a payment, in whole cents."""

    amount_usd: Dollars


@router.put("/tenants/{tenant}/payment-agreement")
def agree(tenant: str, body: AgreementFields, access: Access, context: Context) -> AgreementView:
    """Say how a tenant pays from now on."""
    found = access.resolve(Tenant, tenant)
    recharge = None if body.recharge is None else body.recharge.recharge()
    agreed = _payments(context).agree(found, body.customer, body.payment_method or "", recharge)
    return agreement_view(agreed)


@router.get("/payments")
@allows(Permission.BILLING_READ)
def list_payments(
    query: Annotated[PaymentQuery, Query()], access: Access, context: Context
) -> Page[PaymentView]:
    """List the payments of a tenant, of an invoice, or all."""
    billed = None if query.invoice is None else context.database.invoices.get(query.invoice)
    one = access.one_tenant(query.tenant if billed is None else billed.tenant_id)
    tenant_id = None if one is None else one.id
    store = context.database.store
    if billed is None:  # one more than is shown says whether there are more
        found = store.page(Payment, tenant_id, after=query.after, limit=query.limit + 1)
    else:
        found = [each for each in store.list(Payment, tenant_id) if each.invoice_id == billed.id]
    return page_of(found, query.after, query.limit, _view)


@router.post("/payments", status_code=201)
def pay_invoice(body: PaymentCreate, access: Access, context: Context) -> PaymentView:
    """Order that the provider takes what is due of an invoice; it is asked within seconds."""
    invoice = context.database.invoices.get(body.invoice)
    access.resolve(Tenant, invoice.tenant_id)
    return _view(_payments(context).pay_invoice(invoice))


@router.post("/invoices/{invoice}/payments", status_code=201)
def record_transfer(
    invoice: str, body: TransferCreate, access: Access, context: Context
) -> PaymentView:
    """Book a transfer that came in for an invoice, once for its reference; what is too much of it
    becomes credit."""
    found = context.database.invoices.get(invoice)
    access.resolve(Tenant, found.tenant_id)
    units = None if body.amount is None else _units_of(body.amount, found)
    return _view(_invoice_payments(context).record(found, units, body.reference))


@router.post("/payments/{payment}/reverse")
def reverse_transfer(payment: str, body: TransferReverse, context: Context) -> PaymentView:
    """Take back a transfer that was recorded by mistake, or that the bank took back."""
    found = context.database.store.get(Payment, payment)
    return _view(_invoice_payments(context).reverse(found, body.reason))


@router.post("/payments/{payment}/resolve")
def resolve_payment(payment: str, body: PaymentResolve, context: Context) -> PaymentView:
    """Say what became of a payment whose end is unknown; it is booked as if the provider had."""
    found = context.database.store.get(Payment, payment)
    return _view(
        _payments(context).resolve(
            found, succeeded=body.succeeded, reference=body.reference, reason=body.reason
        )
    )


@router.post("/payments/{payment}/refunds", status_code=201)
def refund_payment(payment: str, body: RefundCreate, context: Context) -> PaymentView:
    """Give back some of a recharge; the amount leaves the balance at once."""
    found = context.database.store.get(Payment, payment)
    return _view(_payments(context).refund(found, parse_usd(body.amount_usd)))


def _payments(context: AdminContext) -> Payments:
    return Payments(context.database, context.clock, context.payment_provider)


def _invoice_payments(context: AdminContext) -> InvoicePayments:
    return InvoicePayments(context.database, context.clock)


def _units_of(amount: Decimal, invoice: Invoice) -> int:
    """A decimal amount in the smallest unit of what an invoice is paid in."""
    units = amount.scaleb(digits_of(invoice))
    if units != units.to_integral_value():
        raise InvalidRequest(
            f"{currency_of(invoice)} has {digits_of(invoice)} digits after the point",
            param="amount",
        )
    return int(units)


def agreement_view(agreed: PaymentAgreement) -> AgreementView:
    """How a tenant pays, as it is shown."""
    recharge = agreed.recharge
    return AgreementView(
        tenant_id=agreed.parent_id,
        customer=agreed.customer,
        payment_method=agreed.payment_method or None,
        recharge=None
        if recharge is None
        else RechargeView(
            below=Money.of(recharge.below_nanousd),
            amount=Money.of(recharge.amount_nanousd),
            a_day_max=recharge.a_day_max,
        ),
    )


def _view(payment: Payment) -> PaymentView:
    return PaymentView(
        id=payment.id,
        tenant_id=payment.parent_id,
        purpose=payment.purpose.value,
        state=payment.state.value,
        provider=payment.provider,
        reference=payment.reference,
        currency=payment.currency,
        amount_units=payment.amount_units,
        amount=decimal_of(payment.amount_units, currency_digits(payment.currency)),
        credit=Money.of(payment.credit_nanousd),
        overpaid=Money.of(payment.overpaid_nanousd),
        invoice_id=payment.invoice_id or None,
        refunded_id=payment.refunded_id or None,
        message=payment.message,
        create_time=moment(payment.create_time),
        end_time=optional_moment(payment.end_time),
    )
