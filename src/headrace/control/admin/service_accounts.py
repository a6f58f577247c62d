"""Routes for service accounts: programs that manage a tenant, with a token shown once.

What one is given is cut to what its maker has, and a service account that makes others can't give
them more than it was given itself.
"""

import datetime
import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest, PermissionDenied
from headrace.base.ids import new_id
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.key_values import Endpoints, Lifetime, ModelNames
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, Reference, reject_id_as_name
from headrace.control.admin.values import RequestBody, moment, optional_moment
from headrace.spec.accounts import ServiceAccount
from headrace.spec.api_key_format import secret_bytes
from headrace.spec.roles import Permission, Role, role_permissions
from headrace.spec.scopes import Scope
from headrace.spec.tenancy import Project, Tenant
from headrace.spec.token_format import service_tokens

router = APIRouter()


class ServiceAccountCreate(RequestBody):
    """A new service account: what a role allows, or these permissions; null: no further bound."""

    tenant: Reference
    name: Name
    role: Role | None = None
    permissions: Annotated[list[Permission], Field(min_length=1, max_length=50)] | None = None
    projects: Annotated[list[Reference], Field(min_length=1, max_length=1000)] | None = None
    models: ModelNames | None = None
    endpoints: Endpoints | None = None
    expires_in_s: Lifetime | None = None


class ServiceAccountView(BaseModel):
    """A service account without its secret."""

    id: str
    name: str
    tenant_id: str
    tenant: str
    active: bool
    permissions: list[str]
    projects: list[str] | None  # ids; null: every project
    models: list[str] | None
    endpoints: list[str] | None
    create_time: datetime.datetime
    expire_time: datetime.datetime | None
    created_by: str


class ServiceAccountCreated(ServiceAccountView):
    """A new service account, its token shown this once."""

    token: str


@router.post("/service-accounts", status_code=201)
@allows(Permission.MEMBER_WRITE)
def create_service_account(
    body: ServiceAccountCreate, access: Access, context: Context
) -> ServiceAccountCreated:
    """Create a service account; its token can't be had again."""
    reject_id_as_name(body.name)
    tenant = access.resolve(Tenant, body.tenant)
    scope = _asked(body, tenant, access.visible.list(Project)).intersect(access.scope_in(tenant.id))
    scope = scope.without_tenant_wide()
    if not scope.permissions or frozenset() in (scope.projects, scope.models, scope.endpoints):
        raise PermissionDenied("nothing that was asked for is yours to give")
    now_s = context.clock.wall_s()
    secret = secrets.token_bytes(secret_bytes)
    account = context.database.store.create(
        ServiceAccount(
            id=new_id(ServiceAccount.id_prefix, context.clock),
            name=body.name,
            parent_id=tenant.id,
            create_time=now_s,
            secret_hmac=service_tokens.digest(context.pepper, secret.hex()),
            permissions=tuple(sorted(scope.permissions)),
            projects=None if scope.projects is None else tuple(sorted(scope.projects)),
            models=None if scope.models is None else tuple(sorted(scope.models)),
            endpoints=None if scope.endpoints is None else tuple(sorted(scope.endpoints)),
            expire_time=None if body.expires_in_s is None else now_s + body.expires_in_s,
            created_by=access.actor.id,
        )
    )
    view = _view(context, account)
    return ServiceAccountCreated(**dict(view), token=service_tokens.format(account.id, secret))


@router.get("/service-accounts")
@allows(Permission.MEMBER_READ)
def list_service_accounts(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[ServiceAccountView]:
    """List the service accounts of a tenant, or of all."""
    parent_id = None if tenant is None else access.resolve(Tenant, tenant).id
    return page_of(
        access.visible.list(ServiceAccount, parent_id),
        after,
        limit,
        lambda account: _view(context, account),
    )


@router.post("/service-accounts/{account}/revoke")
@allows(Permission.MEMBER_WRITE)
def revoke_service_account(account: str, access: Access, context: Context) -> ServiceAccountView:
    """Revoke a service account, for good and at once. Repeating it changes nothing."""
    found = access.resolve(ServiceAccount, account)
    if not found.scope.within(access.scope_in(found.parent_id)):
        raise PermissionDenied("this account may more than you; ask an owner of the tenant")
    if found.active:
        found = context.database.store.update(msgspec.structs.replace(found, active=False))
    return _view(context, found)


def _asked(body: ServiceAccountCreate, tenant: Tenant, projects: list[Project]) -> Scope:
    """What the body asks for."""
    if (body.role is None) == (body.permissions is None):
        raise InvalidRequest("give either `role` or `permissions`", param="role")
    permissions = (
        frozenset(body.permissions or ()) if body.role is None else role_permissions[body.role]
    )
    return Scope(
        permissions=permissions,
        projects=None if body.projects is None else _project_ids(body, tenant, projects),
        models=None if body.models is None else frozenset(body.models),
        endpoints=None if body.endpoints is None else frozenset(body.endpoints),
    )


def _project_ids(
    body: ServiceAccountCreate, tenant: Tenant, projects: list[Project]
) -> frozenset[str]:
    """The ids of the tenant's projects that the body names by id or name."""
    own = [project for project in projects if project.parent_id == tenant.id]
    by_reference = {project.name: project.id for project in own} | {p.id: p.id for p in own}
    missing = sorted(set(body.projects or ()) - set(by_reference))
    if missing:
        raise InvalidRequest(
            f"the tenant {tenant.name!r} has no project {', '.join(missing)}", param="projects"
        )
    return frozenset(by_reference[reference] for reference in body.projects or ())


def _view(context: AdminContext, account: ServiceAccount) -> ServiceAccountView:
    tenant = context.database.store.get(Tenant, account.parent_id)
    return ServiceAccountView(
        id=account.id,
        name=account.name,
        tenant_id=account.parent_id,
        tenant=tenant.name,
        active=account.active,
        permissions=list(account.permissions),
        projects=None if account.projects is None else list(account.projects),
        models=None if account.models is None else list(account.models),
        endpoints=None if account.endpoints is None else list(account.endpoints),
        create_time=moment(account.create_time),
        expire_time=optional_moment(account.expire_time),
        created_by=account.created_by,
    )
