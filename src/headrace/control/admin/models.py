"""Routes for logical models and their immutable versions."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict
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
from headrace.control.admin.values import RequestBody, moment
from headrace.spec.models import Model, ModelVersion, WeightedTarget

router = APIRouter()

Source = Annotated[str, Field(min_length=1, max_length=1000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class VersionFields(RequestBody):
    """Where a version's weights come from."""

    source: Source
    sha256: Sha256 | None = None
    context_length: Annotated[int, Field(ge=1, le=1 << 24)] | None = None


class ModelCreate(VersionFields):
    """A new model and its first version."""

    name: ModelName
    limits: LimitsBody | None = None  # over all callers together


class ModelChange(RequestBody):
    """What is to change; what is not named stays. `limits` replaces all of them; null: none."""

    limits: LimitsBody | None = None  # over all callers together
    active: bool | None = None  # an inactive model answers nobody


class VersionCreate(VersionFields):
    """Another version of a model; it gets the traffic if `activate` says so."""

    model: Reference
    name: Name | None = None  # None: v2, v3, ...
    activate: bool = False


class VersionView(BaseModel):
    """An immutable version."""

    id: str
    name: str
    model_id: str
    model: str
    source: str
    sha256: str | None
    context_length: int | None
    weight: int  # its share of the model's traffic, against the other versions' weights
    create_time: datetime.datetime


class ModelView(BaseModel):
    """A logical model and its versions."""

    id: str
    name: str
    active: bool
    versions: list[VersionView]
    create_time: datetime.datetime
    limits: LimitsView | None


@router.post("/models", status_code=201)
def create_model(body: ModelCreate, context: Context) -> ModelView:
    """Create a model with its first version, which gets all of its traffic."""
    reject_id_as_name(body.name)
    store = context.database.store
    model = store.create(
        Model(
            id=new_id(Model.id_prefix, context.clock),
            name=body.name,
            create_time=context.clock.wall_s(),
            limits=limits_of(body.limits),
        )
    )
    version = _create_version(context, model, "v1", body)
    model = store.update(msgspec.structs.replace(model, targets=(WeightedTarget(version.id),)))
    return _model_view(model, [version])


@router.get("/models")
def list_models(
    context: Context, limit: Limit = page_items_default, after: After = ""
) -> Page[ModelView]:
    """List models with their versions."""
    store = context.database.store
    versions = store.list(ModelVersion)
    return page_of(store.list(Model), after, limit, lambda model: _model_view(model, versions))


@router.get("/models/{model:path}")
def show_model(model: str, context: Context) -> ModelView:
    """Show one model with its versions."""
    store = context.database.store
    found = resolve(store, Model, model)
    return _model_view(found, store.list(ModelVersion, found.id))


@router.patch("/models/{model:path}")
def update_model(model: str, body: ModelChange, context: Context) -> ModelView:
    """Change a model; every gateway knows within seconds."""
    store = context.database.store
    found = resolve(store, Model, model)
    changes: dict[str, object] = {}
    if "limits" in body.model_fields_set:
        changes["limits"] = limits_of(body.limits)
    if body.active is not None:
        changes["active"] = body.active
    changed = store.update(msgspec.structs.replace(found, **changes))
    return _model_view(changed, store.list(ModelVersion, changed.id))


@router.post("/versions", status_code=201)
def create_version(body: VersionCreate, context: Context) -> VersionView:
    """Create another version of a model."""
    store = context.database.store
    model = resolve(store, Model, body.model)
    taken = {version.name for version in store.list(ModelVersion, model.id)}
    if body.name is not None:
        reject_id_as_name(body.name)
    name = body.name or f"v{len(taken) + 1}"
    if name in taken:
        raise Conflict(f"the model {model.name!r} has a version {name!r}; choose another name")
    version = _create_version(context, model, name, body)
    if body.activate:
        model = store.update(msgspec.structs.replace(model, targets=(WeightedTarget(version.id),)))
    return _version_view(version, model)


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
        versions, after, limit, lambda version: _version_view(version, models[version.parent_id])
    )


def _create_version(
    context: AdminContext, model: Model, name: str, fields: VersionFields
) -> ModelVersion:
    return context.database.store.create(
        ModelVersion(
            id=new_id(ModelVersion.id_prefix, context.clock),
            name=name,
            parent_id=model.id,
            create_time=context.clock.wall_s(),
            source=fields.source,
            sha256=fields.sha256,
            context_length=fields.context_length,
        )
    )


def _model_view(model: Model, versions: list[ModelVersion]) -> ModelView:
    return ModelView(
        id=model.id,
        name=model.name,
        active=model.active,
        versions=[_version_view(item, model) for item in versions if item.parent_id == model.id],
        create_time=moment(model.create_time),
        limits=limits_view(model.limits),
    )


def _version_view(version: ModelVersion, model: Model) -> VersionView:
    weights = {target.model_version_id: target.weight for target in model.targets}
    return VersionView(
        id=version.id,
        name=version.name,
        model_id=model.id,
        model=model.name,
        source=version.source,
        sha256=version.sha256,
        context_length=version.context_length,
        weight=weights.get(version.id, 0),
        create_time=moment(version.create_time),
    )
