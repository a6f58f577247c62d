"""What a caller may see and do: each route names the permission it needs, or is for operators.

    @router.post("/keys", status_code=201)
    @allows(Permission.KEY_WRITE)
    def create_key(body: KeyCreate, access: Access) -> KeyCreated: ...

`Access` is the caller together with that permission. Everything is looked up through it, so a
resource of a tenant where the caller lacks the permission is not there at all: reading, naming and
listing it end alike. A route that names nothing is for operators, whatever file it is in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from headrace.base.errors import InvalidRequest, NotFound, PermissionDenied
from headrace.control.admin.actors import Actor
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.guard import actor_key
from headrace.control.admin.references import resolve
from headrace.spec.accounts import Member, ServiceAccount
from headrace.spec.events import Webhook
from headrace.spec.resource import Resource
from headrace.spec.roles import Permission
from headrace.spec.scopes import Scope
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage.store import Store, no_resource

R = TypeVar("R", bound=Resource)
E = TypeVar("E", bound=Callable[..., object])

permission_attribute = "__headrace_permission__"
everyone_attribute = "__headrace_everyone__"


def allows(permission: Permission) -> Callable[[E], E]:
    """Open a route to whoever has this permission in the tenant that it concerns."""

    def mark(endpoint: E) -> E:
        setattr(endpoint, permission_attribute, permission)
        return endpoint

    return mark


def for_everyone_signed_in(endpoint: E) -> E:
    """Open a route to every authenticated caller: it tells nothing but about themselves."""
    setattr(endpoint, everyone_attribute, True)
    return endpoint


def actor_of(request: Request) -> Actor:
    """The caller, whom the guard made out."""
    actor = request.scope.get(actor_key)
    if not isinstance(actor, Actor):
        raise PermissionDenied("this route needs a credential")
    return actor


class VisibleStore:
    """The store as far as a caller sees it under one permission."""

    def __init__(self, store: Store, actor: Actor, permission: Permission | None) -> None:
        self._store = store
        self._actor = actor
        self._permission = permission

    def get(self, kind: type[R], resource_id: str) -> R:
        """The resource of that id; NotFound also if it is not for this caller."""
        found = self._store.get(kind, resource_id)
        if not self.sees(found):
            raise no_resource(kind.kind, resource_id)
        return found

    def list(self, kind: type[R], parent_id: str | None = None) -> "list[R]":
        """The resources of a kind that are for this caller."""
        found = self._store.list(kind, parent_id)
        if self._actor.is_operator:
            return found
        projects = {project.id: project for project in self._store.list(Project)}
        return [item for item in found if self._sees(item, projects.get)]

    def sees(self, resource: Resource) -> bool:
        """Whether a resource is for this caller."""

        def project_of(project_id: str) -> Project | None:
            try:
                return self._store.get(Project, project_id)
            except NotFound:
                return None

        return self._actor.is_operator or self._sees(resource, project_of)

    def _sees(self, resource: Resource, project_of: Callable[[str], Project | None]) -> bool:
        project: Project | None = None
        match resource:
            case Tenant():
                tenant_id = resource.id
            case Project():
                project, tenant_id = resource, resource.parent_id
            case ApiKey():
                project = project_of(resource.parent_id)
                tenant_id = "" if project is None else project.parent_id
            case Member() | ServiceAccount() | Webhook():
                tenant_id = resource.parent_id
            case _:
                return False  # of the platform; no tenant's business
        if self._permission is None or not self._actor.may(self._permission, tenant_id):
            return False
        return project is None or self._actor.scope_in(tenant_id).reaches_project(project.id)


@dataclass(frozen=True, slots=True)
class GrantedAccess:
    """A caller at a route whose permission they have somewhere."""

    actor: Actor
    permission: Permission | None
    context: AdminContext
    visible: VisibleStore
    request: Request

    def resolve(
        self, kind: type[R], reference: str, parent_kind: type[Resource] | None = None
    ) -> R:
        """The one visible resource that `reference` names."""
        found = resolve(self.visible, kind, reference, parent_kind)
        self.concerns(self.tenant_id_of(found))
        return found

    def one_tenant(self, reference: str | None) -> Tenant | None:
        """The tenant that a question is about; None, about all of them, is for operators alone.

        Whoever sees one tenant need not name it; InvalidRequest if there are several."""
        if reference is not None:
            return self.resolve(Tenant, reference)
        if self.actor.is_operator:
            return None
        tenants = self.visible.list(Tenant)
        if len(tenants) != 1:
            raise InvalidRequest("name the tenant that you ask about", param="tenant")
        return tenants[0]

    def tenant_id_of(self, resource: Resource) -> str:
        """The tenant that a resource belongs to; empty for the platform's."""
        match resource:
            case Tenant():
                return resource.id
            case ApiKey():
                return self.context.database.store.get(Project, resource.parent_id).parent_id
            case Project() | Member() | ServiceAccount() | Webhook():
                return resource.parent_id
        return ""

    def concerns(self, tenant_id: str) -> None:
        """Say for the audit log whose matter this request is."""
        self.request.state.audit_tenant_id = tenant_id

    def scope_in(self, tenant_id: str) -> Scope:
        """How far the caller reaches in a tenant."""
        return self.actor.scope_in(tenant_id)

    def require(self, permission: Permission, tenant_id: str) -> None:
        """Ask for one more permission than the route's own."""
        if not self.actor.may(permission, tenant_id):
            raise PermissionDenied(
                f"this needs the permission {permission.value}; ask an owner of the tenant"
            )


async def granted_access(request: Request, context: Context) -> GrantedAccess:
    """The caller's access at the route that serves this request."""
    actor = actor_of(request)
    permission: Permission | None = getattr(request.state, "permission", None)
    return GrantedAccess(
        actor=actor,
        permission=permission,
        context=context,
        visible=VisibleStore(context.database.store, actor, permission),
        request=request,
    )


Access = Annotated[GrantedAccess, Depends(granted_access)]
