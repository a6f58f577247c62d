"""Routes for API keys. The key itself is in the answer to its creation and nowhere else."""

import datetime
import secrets
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import (
    ModelName,
    Name,
    Reference,
    reject_id_as_name,
    resolve,
)
from headrace.control.admin.values import RequestBody, moment, optional_moment
from headrace.spec.api_key_format import format_key, hash_secret, secret_bytes
from headrace.spec.models import Model
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant

router = APIRouter()

key_lifetime_s_max = 10 * 366 * 24 * 3600


class KeyCreate(RequestBody):
    """A new key of a project."""

    project: Reference
    name: Name | None = None  # None: made from the id
    models: Annotated[list[ModelName], Field(min_length=1, max_length=1000)] | None = None
    expires_in_s: Annotated[int, Field(ge=1, le=key_lifetime_s_max)] | None = None
    limits: LimitsBody | None = None


class KeyView(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    project_id: str
    project: str
    tenant_id: str
    tenant: str
    state: Literal["active", "revoked", "expired"]
    models: list[str] | None  # null: every model
    create_time: datetime.datetime
    expire_time: datetime.datetime | None
    limits: LimitsView | None


class KeyCreated(KeyView):
    """A new key, shown this once."""

    key: str


@router.post("/keys", status_code=201)
def create_key(body: KeyCreate, context: Context) -> KeyCreated:
    """Create a key; its text can't be had again."""
    store = context.database.store
    project = resolve(store, Project, body.project, Tenant)
    known = {model.name for model in store.list(Model)}
    unknown = sorted(set(body.models or ()) - known)
    if unknown:
        raise InvalidRequest(
            f"there is no model named {', '.join(unknown)}; create it first, or correct the list",
            param="models",
        )
    now_s = context.clock.wall_s()
    key_id = new_id(ApiKey.id_prefix, context.clock)
    secret = secrets.token_bytes(secret_bytes)
    if body.name is not None:
        reject_id_as_name(body.name)
    created = store.create(
        ApiKey(
            id=key_id,
            name=body.name or f"key-{key_id[-8:]}",
            parent_id=project.id,
            create_time=now_s,
            secret_hmac=hash_secret(context.pepper, secret.hex()),
            models=None if body.models is None else tuple(dict.fromkeys(body.models)),
            expire_time=None if body.expires_in_s is None else now_s + body.expires_in_s,
            limits=limits_of(body.limits),
        )
    )
    view = _KeyViews(context).of(created)
    return KeyCreated(**dict(view), key=format_key(key_id, secret))


@router.get("/keys")
def list_keys(
    context: Context,
    project: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[KeyView]:
    """List keys, of one project or of all."""
    store = context.database.store
    parent_id = None if project is None else resolve(store, Project, project, Tenant).id
    return page_of(store.list(ApiKey, parent_id), after, limit, _KeyViews(context).of)


@router.get("/keys/{key}")
def show_key(key: str, context: Context) -> KeyView:
    """Show one key, without its secret."""
    return _KeyViews(context).of(resolve(context.database.store, ApiKey, key))


@router.post("/keys/{key}/revoke")
def revoke_key(key: str, context: Context) -> KeyView:
    """Revoke a key, for good; every gateway knows within seconds. Repeating it changes nothing."""
    store = context.database.store
    found = resolve(store, ApiKey, key)
    if found.state is not KeyState.REVOKED:
        found = store.update(msgspec.structs.replace(found, state=KeyState.REVOKED))
    return _KeyViews(context).of(found)


class _KeyViews:
    """Views of keys with the names of whose they are, which are read once an answer."""

    def __init__(self, context: AdminContext) -> None:
        store = context.database.store
        self._clock: Clock = context.clock
        self._projects = {project.id: project for project in store.list(Project)}
        self._tenant_names = {tenant.id: tenant.name for tenant in store.list(Tenant)}

    def of(self, key: ApiKey) -> KeyView:
        project = self._projects.get(key.parent_id)
        tenant_id = project.parent_id if project else ""
        return KeyView(
            id=key.id,
            name=key.name,
            project_id=key.parent_id,
            project=project.name if project else "",
            tenant_id=tenant_id,
            tenant=self._tenant_names.get(tenant_id, ""),
            state=self._state(key),
            models=None if key.models is None else list(key.models),
            create_time=moment(key.create_time),
            expire_time=optional_moment(key.expire_time),
            limits=limits_view(key.limits),
        )

    def _state(self, key: ApiKey) -> Literal["active", "revoked", "expired"]:
        if key.state is KeyState.REVOKED:
            return "revoked"
        if key.expire_time is not None and key.expire_time <= self._clock.wall_s():
            return "expired"
        return "active"
