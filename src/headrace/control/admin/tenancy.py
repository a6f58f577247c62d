"""Routes for tenants and projects: who pays, and what they group work by."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, Reference, reject_id_as_name, resolve
from headrace.control.admin.values import Dollars, Money, RequestBody, moment
from headrace.spec.tenancy import Project, Tenant

router = APIRouter()


class TenantCreate(RequestBody):
    """A new tenant; prepaid unless it says otherwise, and then it can spend nothing yet."""

    name: Name
    postpaid: bool = False
    credit_floor_usd: Dollars = "0"  # how low a prepaid balance may go
    credit_usd: Dollars | None = None  # an opening credit
    limits: LimitsBody | None = None


class TenantView(BaseModel):
    """A tenant and its balance."""

    id: str
    name: str
    active: bool
    postpaid: bool
    credit_floor: Money | None
    balance: Money
    create_time: datetime.datetime
    limits: LimitsView | None


class Credit(RequestBody):
    """Money that a tenant paid in."""

    amount_usd: Dollars
    reason: Annotated[str, Field(min_length=1, max_length=200)] = "credit"
    entry_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")] | None = Field(
        default=None, description="Repeating a credit with the same id books it once."
    )


class LimitsChange(RequestBody):
    """New limits in place of the old ones; null: none."""

    limits: LimitsBody | None


class ProjectCreate(RequestBody):
    """A new project of a tenant."""

    tenant: Reference
    name: Name
    limits: LimitsBody | None = None


class ProjectView(BaseModel):
    """A project and whose it is."""

    id: str
    name: str
    tenant_id: str
    tenant: str
    active: bool
    create_time: datetime.datetime
    limits: LimitsView | None


@router.post("/tenants", status_code=201)
def create_tenant(body: TenantCreate, context: Context) -> TenantView:
    """Create a tenant."""
    reject_id_as_name(body.name)
    tenant = context.database.store.create(
        Tenant(
            id=new_id(Tenant.id_prefix, context.clock),
            name=body.name,
            create_time=context.clock.wall_s(),
            credit_floor_nanousd=None if body.postpaid else parse_usd(body.credit_floor_usd),
            limits=limits_of(body.limits),
        )
    )
    if body.credit_usd is not None:
        _post_credit(context, tenant, Credit(amount_usd=body.credit_usd, reason="opening credit"))
    return _view_of_tenant(context, tenant)


@router.get("/tenants")
def list_tenants(
    context: Context, limit: Limit = page_items_default, after: After = ""
) -> Page[TenantView]:
    """List tenants with their balances."""
    balances = context.database.ledger.balances()
    return page_of(
        context.database.store.list(Tenant),
        after,
        limit,
        lambda tenant: _tenant_view(tenant, balances.get(tenant.id, 0)),
    )


@router.get("/tenants/{tenant}")
def show_tenant(tenant: str, context: Context) -> TenantView:
    """Show one tenant."""
    return _view_of_tenant(context, resolve(context.database.store, Tenant, tenant))


@router.patch("/tenants/{tenant}")
def update_tenant(tenant: str, body: LimitsChange, context: Context) -> TenantView:
    """Replace the limits of a tenant; every gateway knows within seconds."""
    store = context.database.store
    found = resolve(store, Tenant, tenant)
    changed = store.update(msgspec.structs.replace(found, limits=limits_of(body.limits)))
    return _view_of_tenant(context, changed)


@router.post("/tenants/{tenant}/credit")
def credit_tenant(tenant: str, body: Credit, context: Context) -> TenantView:
    """Add to a tenant's balance."""
    found = resolve(context.database.store, Tenant, tenant)
    _post_credit(context, found, body)
    return _view_of_tenant(context, found)


@router.post("/projects", status_code=201)
def create_project(body: ProjectCreate, context: Context) -> ProjectView:
    """Create a project."""
    reject_id_as_name(body.name)
    tenant = resolve(context.database.store, Tenant, body.tenant)
    project = context.database.store.create(
        Project(
            id=new_id(Project.id_prefix, context.clock),
            name=body.name,
            parent_id=tenant.id,
            create_time=context.clock.wall_s(),
            limits=limits_of(body.limits),
        )
    )
    return _project_view(project, tenant.name)


@router.get("/projects")
def list_projects(
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[ProjectView]:
    """List projects, of one tenant or of all."""
    store = context.database.store
    parent_id = None if tenant is None else resolve(store, Tenant, tenant).id
    names = {item.id: item.name for item in store.list(Tenant)}
    return page_of(
        store.list(Project, parent_id),
        after,
        limit,
        lambda project: _project_view(project, names.get(project.parent_id, "")),
    )


@router.get("/projects/{project:path}")
def show_project(project: str, context: Context) -> ProjectView:
    """Show one project; `tenant/name` where a name alone is ambiguous."""
    found = resolve(context.database.store, Project, project, Tenant)
    return _project_view(found, context.database.store.get(Tenant, found.parent_id).name)


@router.patch("/projects/{project:path}")
def update_project(project: str, body: LimitsChange, context: Context) -> ProjectView:
    """Replace the limits of a project; every gateway knows within seconds."""
    store = context.database.store
    found = resolve(store, Project, project, Tenant)
    changed = store.update(msgspec.structs.replace(found, limits=limits_of(body.limits)))
    return _project_view(changed, store.get(Tenant, changed.parent_id).name)


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
        create_time=moment(tenant.create_time),
        limits=limits_view(tenant.limits),
    )


def _project_view(project: Project, tenant_name: str) -> ProjectView:
    return ProjectView(
        id=project.id,
        name=project.name,
        tenant_id=project.parent_id,
        tenant=tenant_name,
        active=project.active,
        create_time=moment(project.create_time),
        limits=limits_view(project.limits),
    )
