"""Routes for tenants: who pays."""

import datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, reject_id_as_name
from headrace.control.admin.values import Dollars, Money, RequestBody, moment
from headrace.spec.priority import Priority, priorities_by_word
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant

router = APIRouter()

PriorityWord = Literal["interactive", "standard", "batch"]


class TenantCreate(RequestBody):
    """A new tenant; prepaid unless it says otherwise, and then it can spend nothing yet."""

    name: Name
    postpaid: bool = False
    credit_floor_usd: Dollars = "0"  # how low a prepaid balance may go
    credit_usd: Dollars | None = None  # an opening credit
    priority_highest: PriorityWord = "interactive"  # requests that ask for more get this
    limits: LimitsBody | None = None


class TenantChange(RequestBody):
    """What is to change; what is not named stays. `limits` replaces all of them; null: none."""

    limits: LimitsBody | None = None
    priority_highest: PriorityWord | None = None
    credit_floor_usd: Dollars | None = None  # null: postpaid
    active: bool | None = None


class TenantView(BaseModel):
    """A tenant and its balance."""

    id: str
    name: str
    active: bool
    postpaid: bool
    credit_floor: Money | None
    balance: Money
    priority_highest: PriorityWord
    create_time: datetime.datetime
    limits: LimitsView | None


class Credit(RequestBody):
    """Money that a tenant paid in."""

    amount_usd: Dollars
    reason: Annotated[str, Field(min_length=1, max_length=200)] = "credit"
    entry_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")] | None = Field(
        default=None, description="Repeating a credit with the same id books it once."
    )


@router.post("/tenants", status_code=201)
def create_tenant(body: TenantCreate, access: Access, context: Context) -> TenantView:
    """Create a tenant."""
    reject_id_as_name(body.name)
    tenant = context.database.store.create(
        Tenant(
            id=new_id(Tenant.id_prefix, context.clock),
            name=body.name,
            create_time=context.clock.wall_s(),
            credit_floor_nanousd=None if body.postpaid else parse_usd(body.credit_floor_usd),
            priority_highest=priorities_by_word[body.priority_highest],
            limits=limits_of(body.limits),
        )
    )
    access.concerns(tenant.id)
    if body.credit_usd is not None:
        _post_credit(context, tenant, Credit(amount_usd=body.credit_usd, reason="opening credit"))
    return _view_of_tenant(context, tenant)


@router.get("/tenants")
@allows(Permission.TENANT_READ)
def list_tenants(
    access: Access, context: Context, limit: Limit = page_items_default, after: After = ""
) -> Page[TenantView]:
    """List tenants with their balances."""
    balances = context.database.ledger.balances()
    return page_of(
        access.visible.list(Tenant),
        after,
        limit,
        lambda tenant: _tenant_view(tenant, balances.get(tenant.id, 0)),
    )


@router.get("/tenants/{tenant}")
@allows(Permission.TENANT_READ)
def show_tenant(tenant: str, access: Access, context: Context) -> TenantView:
    """Show one tenant."""
    return _view_of_tenant(context, access.resolve(Tenant, tenant))


@router.patch("/tenants/{tenant}")
def update_tenant(tenant: str, body: TenantChange, access: Access, context: Context) -> TenantView:
    """Change a tenant; every gateway knows within seconds."""
    found = access.resolve(Tenant, tenant)
    changes: dict[str, object] = {}
    if "limits" in body.model_fields_set:
        changes["limits"] = limits_of(body.limits)
    if body.priority_highest is not None:
        changes["priority_highest"] = priorities_by_word[body.priority_highest]
    if "credit_floor_usd" in body.model_fields_set:
        floor_usd = body.credit_floor_usd
        changes["credit_floor_nanousd"] = None if floor_usd is None else parse_usd(floor_usd)
    if body.active is not None:
        changes["active"] = body.active
    changed = context.database.store.update(msgspec.structs.replace(found, **changes))
    return _view_of_tenant(context, changed)


@router.post("/tenants/{tenant}/credit")
def credit_tenant(tenant: str, body: Credit, access: Access, context: Context) -> TenantView:
    """Add to a tenant's balance."""
    found = access.resolve(Tenant, tenant)
    _post_credit(context, found, body)
    return _view_of_tenant(context, found)


def _post_credit(context: AdminContext, tenant: Tenant, credit: Credit) -> None:
    amount_nanousd = parse_usd(credit.amount_usd)
    if amount_nanousd <= 0:
        raise InvalidRequest("amount_usd: a credit is more than 0 dollars", param="amount_usd")
    entry_id = credit.entry_id or new_id("ent", context.clock)
    context.database.ledger.credit(tenant.id, amount_nanousd, entry_id, credit.reason)


def _view_of_tenant(context: AdminContext, tenant: Tenant) -> TenantView:
    return _tenant_view(tenant, context.database.ledger.balances().get(tenant.id, 0))


def _tenant_view(tenant: Tenant, balance_nanousd: int) -> TenantView:
    floor_nanousd = tenant.credit_floor_nanousd
    return TenantView(
        id=tenant.id,
        name=tenant.name,
        active=tenant.active,
        postpaid=floor_nanousd is None,
        credit_floor=None if floor_nanousd is None else Money.of(floor_nanousd),
        balance=Money.of(balance_nanousd),
        priority_highest=priority_word(tenant.priority_highest),
        create_time=moment(tenant.create_time),
        limits=limits_view(tenant.limits),
    )


def priority_word(priority: Priority) -> PriorityWord:
    """A priority as the API says it."""
    words: tuple[PriorityWord, ...] = ("interactive", "standard", "batch")
    return words[priority]
