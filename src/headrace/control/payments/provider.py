"""What headrace needs of a payment provider."""

from enum import StrEnum
from typing import Protocol

import msgspec


class Verdict(StrEnum):
    """What the provider says of a payment."""

    SUCCEEDED = "succeeded"
    DECLINED = "declined"
    PROCESSING = "processing"  # it will say later; ask again


class Answer(msgspec.Struct, frozen=True):
    """The provider's answer."""

    verdict: Verdict
    reference: str = ""  # its own id of the payment
    message: str = ""  # why it declined, in words that may be shown


class ChargeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Take money from a customer who is not there to confirm it."""

    idempotency_key: str
    customer: str
    payment_method: str
    amount_units: int
    currency: str
    description: str


class RefundOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Give back some of a payment."""

    idempotency_key: str
    reference: str  # the provider's id of the payment
    amount_units: int


class PaymentProvider(Protocol):
    """Takes and gives back money. The same idempotency key is the same payment, however often.

    Both raise Unavailable where nobody knows what came of it: ask again with the same key."""

    name: str

    def charge(self, order: ChargeOrder) -> Answer:
        """Take money."""
        ...

    def refund(self, order: RefundOrder) -> Answer:
        """Give it back."""
        ...
