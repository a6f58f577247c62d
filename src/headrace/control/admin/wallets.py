"""Routes for wallets: credit granted to a tenant, and what is left of it."""

import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import Context
from headrace.control.admin.key_values import Lifetime
from headrace.control.admin.values import (
    Dollars,
    Money,
    RequestBody,
    moment,
    optional_moment,
)
from headrace.control.wallets import Wallets
from headrace.spec.grants import Grant, GrantKind, grant_priority_max
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant

router = APIRouter()


class GrantCreate(RequestBody):
    """Credit for a tenant; a lower priority is used first."""

    amount_usd: Dollars
    kind: GrantKind = GrantKind.PREPAID
    priority: Annotated[int, Field(ge=0, le=grant_priority_max)] = 50
    expires_in_s: Lifetime | None = None
    reason: Annotated[str, Field(max_length=200)] = ""


class GrantView(BaseModel):
    """A grant and what is left of it."""

    id: str
    tenant_id: str
    kind: GrantKind
    priority: int
    amount: Money
    left: Money
    expired: Money | None  # what was taken back; null: not expired
    start_time: datetime.datetime
    expire_time: datetime.datetime | None
    reason: str


class Wallet(BaseModel):
    """All that a tenant can spend."""

    tenant_id: str
    tenant: str
    balance: Money
    grants: list[GrantView]


@router.post("/tenants/{tenant}/grants", status_code=201)
def grant_credit(tenant: str, body: GrantCreate, access: Access, context: Context) -> GrantView:
    """Grant credit to a tenant, at once."""
    found = access.resolve(Tenant, tenant)
    amount_nanousd = parse_usd(body.amount_usd)
    if amount_nanousd <= 0:
        raise InvalidRequest("a grant is over 0 dollars", param="amount_usd")
    now_s = context.clock.wall_s()
    grant_id = new_id(Grant.id_prefix, context.clock)
    created = Wallets(context.database, context.clock).grant(
        Grant(
            id=grant_id,
            name=grant_id,
            parent_id=found.id,
            create_time=now_s,
            amount_nanousd=amount_nanousd,
            grant_kind=body.kind,
            priority=body.priority,
            start_time=now_s,
            expire_time=None if body.expires_in_s is None else now_s + body.expires_in_s,
            reason=body.reason,
        )
    )
    return _view(created, amount_nanousd)


@router.get("/tenants/{tenant}/wallet")
@allows(Permission.BILLING_READ)
def show_wallet(tenant: str, access: Access, context: Context) -> Wallet:
    """Show a tenant's balance and what is left of each grant."""
    found = access.resolve(Tenant, tenant)
    grants = Wallets(context.database, context.clock).left(found)
    return Wallet(
        tenant_id=found.id,
        tenant=found.name,
        balance=Money.of(context.database.ledger.balances().get(found.id, 0)),
        grants=[_view(grant, left) for grant, left in grants],
    )


def _view(grant: Grant, left_nanousd: int) -> GrantView:
    expired = grant.expired_nanousd
    return GrantView(
        id=grant.id,
        tenant_id=grant.parent_id,
        kind=grant.grant_kind,
        priority=grant.priority,
        amount=Money.of(grant.amount_nanousd),
        left=Money.of(left_nanousd),
        expired=None if expired is None else Money.of(expired),
        start_time=moment(grant.start_time),
        expire_time=optional_moment(grant.expire_time),
        reason=grant.reason,
    )
