"""Routes for projects: what a tenant groups its work by."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel

from headrace.base.ids import new_id
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, Reference, reject_id_as_name
from headrace.control.admin.values import RequestBody, moment
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Project, Tenant

router = APIRouter()


class ProjectCreate(RequestBody):
    """A new project of a tenant."""

    tenant: Reference
    name: Name
    limits: LimitsBody | None = None
    caches_answers: bool = False  # equal requests, soon after each other, are answered once


class ProjectChange(RequestBody):
    """What is to change; what is not named stays. `limits` replaces all of them; null: none."""

    limits: LimitsBody | None = None
    active: bool | None = None
    caches_answers: bool | None = None


class ProjectView(BaseModel):
    """A project and whose it is."""

    id: str
    name: str
    tenant_id: str
    tenant: str
    active: bool
    caches_answers: bool
    create_time: datetime.datetime
    limits: LimitsView | None


@router.post("/projects", status_code=201)
@allows(Permission.PROJECT_WRITE)
def create_project(body: ProjectCreate, access: Access, context: Context) -> ProjectView:
    """Create a project."""
    reject_id_as_name(body.name)
    tenant = access.resolve(Tenant, body.tenant)
    project = context.database.store.create(
        Project(
            id=new_id(Project.id_prefix, context.clock),
            name=body.name,
            parent_id=tenant.id,
            create_time=context.clock.wall_s(),
            limits=limits_of(body.limits),
            caches_answers=body.caches_answers,
        )
    )
    return _project_view(project, tenant.name)


@router.get("/projects")
@allows(Permission.PROJECT_READ)
def list_projects(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[ProjectView]:
    """List projects, of one tenant or of all."""
    parent_id = None if tenant is None else access.resolve(Tenant, tenant).id
    names = {item.id: item.name for item in context.database.store.list(Tenant)}
    return page_of(
        access.visible.list(Project, parent_id),
        after,
        limit,
        lambda project: _project_view(project, names.get(project.parent_id, "")),
    )


@router.get("/projects/{project:path}")
@allows(Permission.PROJECT_READ)
def show_project(project: str, access: Access, context: Context) -> ProjectView:
    """Show one project; `tenant/name` where a name alone is ambiguous."""
    found = access.resolve(Project, project, Tenant)
    return _project_view(found, context.database.store.get(Tenant, found.parent_id).name)


@router.patch("/projects/{project:path}")
@allows(Permission.PROJECT_WRITE)
def update_project(
    project: str, body: ProjectChange, access: Access, context: Context
) -> ProjectView:
    """Change a project; every gateway knows within seconds."""
    store = context.database.store
    found = access.resolve(Project, project, Tenant)
    changes: dict[str, object] = {}
    if "limits" in body.model_fields_set:
        changes["limits"] = limits_of(body.limits)
    if body.active is not None:
        changes["active"] = body.active
    if body.caches_answers is not None:
        changes["caches_answers"] = body.caches_answers
    changed = store.update(msgspec.structs.replace(found, **changes))
    return _project_view(changed, store.get(Tenant, changed.parent_id).name)


def _project_view(project: Project, tenant_name: str) -> ProjectView:
    return ProjectView(
        id=project.id,
        name=project.name,
        tenant_id=project.parent_id,
        tenant=tenant_name,
        active=project.active,
        caches_answers=project.caches_answers,
        create_time=moment(project.create_time),
        limits=limits_view(project.limits),
    )
