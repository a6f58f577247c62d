"""Routes for wallets: credit granted to a tenant, what is left of it, and what was booked."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import Context
from headrace.control.admin.key_values import Lifetime
from headrace.control.admin.pages import Page, page_items_default, page_items_max
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


class EntryView(BaseModel):
    """What changed a balance beside requests: credit, a payment, a refund, a correction."""

    id: str
    amount: Money  # negative: taken back
    reason: str
    post_time: datetime.datetime


class EntryQuery(BaseModel):
    """Which part of the entries."""

    limit: Annotated[int, Field(ge=1, le=page_items_max)] = page_items_default
    after: Annotated[
        str, Field(pattern=r"^([0-9.e+]+:.{1,120})?$", description="`next` of the page before.")
    ] = ""

    def place(self) -> tuple[float, str] | None:
        """The time and id that the page follows; None at the beginning."""
        if not self.after:
            return None
        post_time, _, entry_id = self.after.partition(":")
        return float(post_time), entry_id


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


@router.get("/tenants/{tenant}/entries")
@allows(Permission.BILLING_READ)
def list_entries(
    tenant: str, query: Annotated[EntryQuery, Query()], access: Access, context: Context
) -> Page[EntryView]:
    """List what changed a tenant's balance beside its requests, the newest first."""
    found = access.resolve(Tenant, tenant)
    entries = context.database.ledger.credits(found.id, before=query.place(), limit=query.limit + 1)
    part = entries[: query.limit]
    last = part[-1] if len(entries) > query.limit else None
    return Page(
        items=[
            EntryView(
                id=entry.id,
                amount=Money.of(entry.amount_nanousd),
                reason=entry.reason,
                post_time=moment(entry.post_time),
            )
            for entry in part
        ],
        next=None if last is None else f"{last.post_time!r}:{last.id}",
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
