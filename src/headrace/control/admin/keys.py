"""Routes for API keys. The key itself is in the answer that made it and nowhere else."""

import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query

from headrace.base.errors import Conflict
from headrace.base.ids import new_id
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.key_values import (
    KeyChange,
    KeyCreate,
    KeyCreated,
    KeyFields,
    KeyRotate,
    KeyView,
    KeyViews,
    allowed,
    key_values,
)
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import reject_id_as_name
from headrace.spec.api_key_format import format_key, hash_secret, secret_bytes
from headrace.spec.roles import Permission
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant

router = APIRouter()

all_fields = frozenset(KeyFields.model_fields)


@router.post("/keys", status_code=201)
@allows(Permission.KEY_WRITE)
def create_key(body: KeyCreate, access: Access, context: Context) -> KeyCreated:
    """Create a key; its text can't be had again."""
    project = access.resolve(Project, body.project, Tenant)
    if body.name is not None:
        reject_id_as_name(body.name)
    key_id = new_id(ApiKey.id_prefix, context.clock)
    scope = access.scope_in(project.parent_id)
    draft = ApiKey(
        id=key_id,
        name=body.name or f"key-{key_id[-8:]}",
        parent_id=project.id,
        create_time=context.clock.wall_s(),
        secret_hmac=b"",
        created_by=access.actor.id,
    )
    values = key_values(body, all_fields, context, scope)
    return _keep_new(context, msgspec.structs.replace(draft, **values))


@router.get("/keys")
@allows(Permission.KEY_READ)
def list_keys(
    access: Access,
    context: Context,
    project: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[KeyView]:
    """List keys, of one project or of all."""
    parent_id = None if project is None else access.resolve(Project, project, Tenant).id
    return page_of(access.visible.list(ApiKey, parent_id), after, limit, KeyViews(context).of)


@router.get("/keys/{key}")
@allows(Permission.KEY_READ)
def show_key(key: str, access: Access, context: Context) -> KeyView:
    """Show one key, without its secret."""
    return KeyViews(context).of(access.resolve(ApiKey, key))


@router.patch("/keys/{key}")
@allows(Permission.KEY_WRITE)
def update_key(key: str, body: KeyChange, access: Access, context: Context) -> KeyView:
    """Change what a key is for; every gateway knows within seconds."""
    found = _unrevoked(access, key)
    names = frozenset(body.model_fields_set)
    values = key_values(body, names, context, access.scope_in(access.tenant_id_of(found)))
    if body.name is not None:
        reject_id_as_name(body.name)
        values["name"] = body.name
    changed = context.database.store.update(msgspec.structs.replace(found, **values))
    return KeyViews(context).of(changed)


@router.post("/keys/{key}/rotate", status_code=201)
@allows(Permission.KEY_WRITE)
def rotate_key(key: str, body: KeyRotate, access: Access, context: Context) -> KeyCreated:
    """Make a new key with the name and bounds of this one, which ends after the overlap.

    The new one is cut to what its maker has. The old one is renamed, so that the name is the
    newest key's."""
    old = _unrevoked(access, key)
    if old.successor_id:
        raise Conflict(f"the key {old.name!r} was rotated already; rotate {old.successor_id}")
    now_s = context.clock.wall_s()
    scope = access.scope_in(access.tenant_id_of(old))
    new = msgspec.structs.replace(
        old,
        models=allowed(old.models, scope.models, "models"),
        endpoints=allowed(old.endpoints, scope.endpoints, "endpoints"),
        id=new_id(ApiKey.id_prefix, context.clock),
        create_time=now_s,
        expire_time=_renewed(old, now_s),
        created_by=access.actor.id,
    )
    ends_s = now_s + body.overlap_s
    context.database.store.update(
        msgspec.structs.replace(
            old,
            name=f"{old.name[:200]}-until-{new.id[-8:]}",
            state=KeyState.ACTIVE if body.overlap_s else KeyState.REVOKED,
            expire_time=ends_s if old.expire_time is None else min(ends_s, old.expire_time),
            successor_id=new.id,
        )
    )
    return _keep_new(context, new)


@router.post("/keys/{key}/revoke")
@allows(Permission.KEY_WRITE)
def revoke_key(key: str, access: Access, context: Context) -> KeyView:
    """Revoke a key, for good; every gateway knows within seconds. Repeating it changes nothing."""
    found = access.resolve(ApiKey, key)
    if found.state is not KeyState.REVOKED:
        revoked = msgspec.structs.replace(found, state=KeyState.REVOKED)
        found = context.database.store.update(revoked)
    return KeyViews(context).of(found)


def _keep_new(context: AdminContext, draft: ApiKey) -> KeyCreated:
    """Give a key its secret, keep its digest, and show both this once."""
    secret = secrets.token_bytes(secret_bytes)
    digest = hash_secret(context.pepper, secret.hex())
    created = context.database.store.create(msgspec.structs.replace(draft, secret_hmac=digest))
    view = KeyViews(context).of(created)
    return KeyCreated(**dict(view), key=format_key(created.id, secret))


def _unrevoked(access: GrantedAccess, key: str) -> ApiKey:
    found = access.resolve(ApiKey, key)
    if found.state is KeyState.REVOKED:
        raise Conflict(f"the key {found.name!r} is revoked, for good; make a new one")
    return found


def _renewed(old: ApiKey, now_s: float) -> float | None:
    """When the successor ends: after as long a life as the old key was given."""
    if old.expire_time is None:
        return None
    return now_s + max(1.0, old.expire_time - old.create_time)
