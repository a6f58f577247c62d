"""Payments: money that a provider takes from a tenant or gives back to it, or that a bank brought.

PENDING ──the provider took it──▶ SUCCEEDED ──a transfer was no such thing──▶ REVERSED
   │ ├─────the provider refused──▶ FAILED
   │ └──nobody could be reached──▶ UNKNOWN ──a person asked──▶ SUCCEEDED, FAILED
   └── tried again, with the same idempotency key, until one of these

A transfer is recorded when it is there, so it begins as SUCCEEDED.
"""

from enum import StrEnum

import msgspec

from headrace.spec.resource import Resource

by_transfer = "transfer"  # the `provider` of what came by a bank


class PaymentPurpose(StrEnum):
    """What a payment is for."""

    RECHARGE = "recharge"  # prepaid credit
    INVOICE = "invoice"
    REFUND = "refund"  # of another payment


class PaymentState(StrEnum):
    """A payment's life; see the module's diagram."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    REVERSED = "reversed"


class Recharge(msgspec.Struct, frozen=True):
    """Credit that is bought by itself when a balance gets low."""

    below_nanousd: int
    amount_nanousd: int
    a_day_max: int = 3  # recharges in 24 hours; beyond it a person has to look

    def __post_init__(self) -> None:
        if self.amount_nanousd <= 0 or self.a_day_max < 1:
            raise ValueError("a recharge is over 0 dollars, at least once a day")


class PaymentAgreement(Resource, frozen=True, kw_only=True, tag="payment_agreement"):
    """How the tenant `parent_id` pays: whom the provider knows it as."""

    kind = "payment_agreement"
    id_prefix = "pag"

    customer: str  # the provider's id of the tenant
    payment_method: str = ""  # the provider's id; empty: the customer's default
    recharge: Recharge | None = None


class Payment(Resource, frozen=True, kw_only=True, tag="payment"):
    """One payment of the tenant `parent_id`; its id is the idempotency key at the provider.

    A transfer's name is its reference, so that a tenant's is recorded once."""

    kind = "payment"
    id_prefix = "pay"

    purpose: PaymentPurpose
    provider: str
    currency: str  # ISO 4217
    amount_units: int  # of the currency's smallest unit; refunds too are above 0
    credit_nanousd: int  # what the tenant's balance gets, or loses by a refund
    overpaid_nanousd: int = 0  # of that, what was more than was open of the invoice
    invoice_id: str = ""
    place: int = 0  # among what was booked for its invoice, from 1
    refunded_id: str = ""  # the payment that a refund gives back
    state: PaymentState = PaymentState.PENDING
    reference: str = ""  # the provider's id of it, or the bank's
    message: str = ""  # why it failed, or was reversed
    attempts: int = 0
    next_attempt_time: float = 0.0
    end_time: float | None = None
