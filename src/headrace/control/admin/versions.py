"""Routes for the immutable versions of models."""

import msgspec
from fastapi import APIRouter, Request

from headrace.base.errors import Conflict
from headrace.control.admin.access import actor_of
from headrace.control.admin.context import Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import reject_id_as_name, resolve
from headrace.control.admin.version_values import (
    VersionCreate,
    VersionView,
    version_of,
    version_view,
)
from headrace.control.in_use import check_version_unused
from headrace.spec.models import Model, ModelVersion, WeightedTarget

router = APIRouter()


@router.delete("/versions/{version:path}", status_code=204)
def delete_version(version: str, context: Context) -> None:
    """Forget a version; Conflict while a deployment or the model's traffic needs it."""
    store = context.database.store
    with context.database.transaction():
        found = resolve(store, ModelVersion, version, Model)
        check_version_unused(store, found)
        model = store.get(Model, found.parent_id)
        kept = tuple(t for t in model.targets if t.model_version_id != found.id)
        if kept != model.targets:
            store.update(msgspec.structs.replace(model, targets=kept))
        store.delete(found)


@router.post("/versions", status_code=201)
def create_version(body: VersionCreate, context: Context, request: Request) -> VersionView:
    """Create another version of a model."""
    store = context.database.store
    model = resolve(store, Model, body.model)
    taken = {version.name for version in store.list(ModelVersion, model.id)}
    if body.name is not None:
        reject_id_as_name(body.name)
    name = body.name or f"v{len(taken) + 1}"
    if name in taken:
        raise Conflict(f"the model {model.name!r} has a version {name!r}; choose another name")
    version = store.create(version_of(context, model, name, body, actor_of(request).name))
    if body.activate:
        model = store.update(msgspec.structs.replace(model, targets=(WeightedTarget(version.id),)))
    return version_view(version, model)


@router.get("/versions")
def list_versions(
    context: Context,
    model: str | None = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[VersionView]:
    """List versions, of one model or of all."""
    store = context.database.store
    parent_id = None if model is None else resolve(store, Model, model).id
    models = {item.id: item for item in store.list(Model)}
    versions = [item for item in store.list(ModelVersion, parent_id) if item.parent_id in models]
    return page_of(
        versions, after, limit, lambda version: version_view(version, models[version.parent_id])
    )
