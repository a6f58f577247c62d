"""What is set aside for a request at admission, and the values that its life writes down."""

import msgspec

from headrace.spec.prices import PriceVersion
from headrace.spec.settlements import (
    Charge,
    KeyUse,
    Outcome,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
    no_units,
    one_request,
)

__all__ = [
    "Charge",
    "Checkpoint",
    "KeyUse",
    "Outcome",
    "Reservation",
    "Reserve",
    "Settle",
    "Settlement",
    "TokenUsage",
    "UnitCounts",
    "UsageSource",
    "no_units",
    "one_request",
]


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The worst case of one admitted request, held until its settlement."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    model: str  # the logical model's name
    price: PriceVersion | None  # fixed now, whatever takes effect later; None: unrated
    prompt_tokens_max: int
    output_tokens_max: int
    amount_nanousd: int  # no request ever costs more than was set aside for it
    reserve_time: float  # seconds since the Unix epoch
    price_percent: int = 100  # of the book's prices, which are in `price` at this share already
    key_use: KeyUse | None = None  # None: its caller sent no `Idempotency-Key`


class Reserve(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Journal record: a request was admitted."""

    reservation: Reservation


class Checkpoint(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Journal record: what a running request has used so far."""

    request_id: str
    usage: TokenUsage


class Settle(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Journal record: a request ended."""

    settlement: Settlement
