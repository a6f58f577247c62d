"""Routes for payments: how tenants pay, invoices paid, recharges, refunds."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints

from headrace.base.errors import InvalidRequest
from headrace.base.money import nanousd_per_cent, parse_usd
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Reference
from headrace.control.admin.values import Dollars, Money, RequestBody, moment, optional_moment
from headrace.control.payments.payments import Payments
from headrace.spec.payments import Payment, PaymentAgreement, Recharge
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant

router = APIRouter()

ProviderId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=255)]


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
    credit: Money
    invoice_id: str | None
    refunded_id: str | None
    message: str
    create_time: datetime.datetime
    end_time: datetime.datetime | None


class PaymentCreate(RequestBody):
    """Pay an invoice, by its number or id."""

    invoice: Reference


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
    access: Access,
    context: Context,
    limit: Limit = page_items_default,
    after: After = "",
    tenant: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[PaymentView]:
    """List the payments of a tenant, or of all."""
    one = access.one_tenant(tenant)
    found = _payments(context).of_tenant(None if one is None else one.id)
    return page_of(found, after, limit, _view)


@router.post("/payments", status_code=201)
def pay_invoice(body: PaymentCreate, access: Access, context: Context) -> PaymentView:
    """Order that the provider takes what is due of an invoice; it is asked within seconds."""
    invoice = context.database.invoices.get(body.invoice)
    access.resolve(Tenant, invoice.tenant_id)
    return _view(_payments(context).pay_invoice(invoice))


@router.post("/payments/{payment}/refunds", status_code=201)
def refund_payment(payment: str, body: RefundCreate, context: Context) -> PaymentView:
    """Give back some of a recharge; the amount leaves the balance at once."""
    found = context.database.store.get(Payment, payment)
    return _view(_payments(context).refund(found, parse_usd(body.amount_usd)))


def _payments(context: AdminContext) -> Payments:
    return Payments(context.database, context.clock, context.payment_provider)


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
        credit=Money.of(payment.credit_nanousd),
        invoice_id=payment.invoice_id or None,
        refunded_id=payment.refunded_id or None,
        message=payment.message,
        create_time=moment(payment.create_time),
        end_time=optional_moment(payment.end_time),
    )
