"""Routes about the caller's own session: who one is, signing out, one's own password.

`POST /session` makes a session of the admin token, for the console. The token travels in the
Authorization header of that one request, so the guard checks it like any other; scripts in the page
can't read the cookie that stands for it from then on.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, SecretStr

from headrace.base.errors import PermissionDenied
from headrace.control.admin.access import Access, for_everyone_signed_in
from headrace.control.admin.context import Context
from headrace.control.admin.credentials import session_duration_s
from headrace.control.admin.guard import session_cookie
from headrace.control.admin.sign_in import hash_password, password_length_max
from headrace.control.admin.sign_in_routes import SessionView, cookie_path, set_session_cookie
from headrace.control.admin.values import RequestBody
from headrace.spec.tenancy import Project, Tenant

router = APIRouter()


class GrantedProject(BaseModel):
    """A project that one sees."""

    id: str
    name: str


class GrantView(BaseModel):
    """What one may do in a tenant."""

    tenant_id: str
    tenant: str
    permissions: list[str]
    projects: list[GrantedProject] | None  # null: all of them


class CallerView(BaseModel):
    """Who one is to this platform."""

    kind: str
    id: str
    name: str
    is_operator: bool
    grants: list[GrantView]


class PasswordChange(RequestBody):
    """A new password in place of the old one."""

    password: Annotated[SecretStr, Field(max_length=password_length_max)]
    new_password: Annotated[SecretStr, Field(max_length=password_length_max)]


@router.post("/session", status_code=201)
@for_everyone_signed_in
def open_session(
    request: Request, response: Response, access: Access, context: Context
) -> SessionView:
    """Sign in with the admin token: set the session's cookie."""
    if access.actor.kind == "service_account":
        raise PermissionDenied("a service account has no session; it presents its token")
    set_session_cookie(context.credentials.open_session(access.actor.id), request, response)
    return SessionView(expires_in_s=session_duration_s)


@router.delete("/session", status_code=204)
@router.post("/auth/logout", status_code=204)
@for_everyone_signed_in
def close_session(request: Request, response: Response, context: Context) -> None:
    """Sign out: the cookie is worth nothing from now on."""
    context.credentials.close_session(request.cookies.get(session_cookie, ""))
    response.delete_cookie(session_cookie, path=cookie_path, httponly=True, samesite="strict")


@router.get("/auth/me")
@for_everyone_signed_in
def show_caller(access: Access, context: Context) -> CallerView:
    """Say who one is, and what one may do where."""
    actor = access.actor
    store = context.database.store
    tenants = {tenant.id: tenant.name for tenant in store.list(Tenant)}
    projects = {project.id: project.name for project in store.list(Project)}
    return CallerView(
        kind=actor.kind,
        id=actor.id,
        name=actor.name,
        is_operator=actor.is_operator,
        grants=[
            GrantView(
                tenant_id=tenant_id,
                tenant=tenants.get(tenant_id, ""),
                permissions=sorted(scope.permissions),
                projects=None
                if scope.projects is None
                else [
                    GrantedProject(id=project_id, name=projects[project_id])
                    for project_id in sorted(scope.projects)
                    if project_id in projects
                ],
            )
            for tenant_id, scope in sorted(actor.grants.items())
        ],
    )


@router.post("/auth/password", status_code=204)
@for_everyone_signed_in
def change_password(body: PasswordChange, access: Access, context: Context) -> None:
    """Change one's own password; every session of the account ends."""
    if access.actor.kind != "user":
        raise PermissionDenied("only a person with a local account has a password")
    user = context.passwords.user_of(
        access.actor.name, body.password.get_secret_value(), access.actor.id
    )
    new_hash = hash_password(body.new_password.get_secret_value())
    context.database.store.update(msgspec.structs.replace(user, password_hash=new_hash))
    context.credentials.close_sessions_of(user.id)
