"""Grants: credit that is used in an order and may expire."""

from enum import StrEnum

from headrace.spec.resource import Resource

grant_priority_max = 100


class GrantKind(StrEnum):
    """Where a grant's money came from."""

    PREPAID = "prepaid"  # paid for; what is left can be refunded
    PROMOTIONAL = "promotional"  # given; what is left is nobody's


class Grant(Resource, frozen=True, kw_only=True, tag="grant"):
    """Credit given to a tenant (`parent_id`) at once; what is left when it expires is taken back.

    Grants of a lower `priority` are used first, of those the one that expires first, then the
    oldest. Plain credit of `tenants credit` has no grant, never expires and is used last."""

    kind = "grant"
    id_prefix = "grt"

    amount_nanousd: int
    grant_kind: GrantKind = GrantKind.PREPAID
    priority: int = 50
    start_time: float
    expire_time: float | None = None
    reason: str = ""
    expired_nanousd: int | None = None  # what was left and taken back; None: not expired yet
