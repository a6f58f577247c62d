"""What happened that somebody may want to hear of, who wants to, and how the telling went."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.spec.resource import Resource


class EventType(StrEnum):
    """The kinds of events."""

    BUDGET_THRESHOLD = "budget.threshold"  # so much of a money budget is spent
    TOKENS_THRESHOLD = "tokens.threshold"  # so much of a token quota is used
    CREDIT_LOW = "credit.low"  # a prepaid balance does not last another day like the last one
    PAYMENT_SUCCEEDED = "payment.succeeded"
    PAYMENT_FAILED = "payment.failed"  # declined, or nobody knows
    TEST = "test"  # somebody asked whether the webhook works


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once."""

    id: str
    type: EventType
    tenant_id: str
    occasion: str  # the same occasion is the same event, whoever notices it and how often
    create_time: float
    data: Mapping[str, object] = {}


class Webhook(Resource, frozen=True, kw_only=True, tag="webhook"):
    """Where a tenant's events are sent; `parent_id` is the tenant.

    Its signing secret is not kept: it is derived from the server's secret, this id and
    `secret_number`, so that a copy of the store signs nothing."""

    kind = "webhook"
    id_prefix = "whk"

    url: str
    events: tuple[EventType, ...]
    active: bool = True
    secret_number: int = 1  # grows when the secret is rotated


class DeliveryState(StrEnum):
    """How the telling of one event to one webhook stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way to one webhook."""

    event: Event
    webhook_id: str
    state: DeliveryState
    attempts: int
    next_attempt_time: float
    last_status: int | None = None
    last_error: str | None = None
