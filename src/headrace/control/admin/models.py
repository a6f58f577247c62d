"""Routes for logical models; those for their versions are in `versions`."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict, InvalidRequest, NotFound
from headrace.base.ids import new_id
from headrace.control.admin.access import actor_of
from headrace.control.admin.context import Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.objective_values import (
    ObjectivesBody,
    ObjectivesView,
    objectives_of,
    objectives_view,
)
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import ModelName, reject_id_as_name, resolve
from headrace.control.admin.values import RequestBody, moment
from headrace.control.admin.version_values import (
    VersionFields,
    VersionView,
    version_of,
    version_view,
)
from headrace.control.in_use import check_model_unused
from headrace.spec.models import Model, ModelVersion, WeightedTarget

router = APIRouter()


Aliases = Annotated[tuple[ModelName, ...], Field(max_length=50)]
Fallbacks = Annotated[tuple[ModelName, ...], Field(max_length=10)]
Weight = Annotated[int, Field(ge=0, le=1_000_000)]


class ModelCreate(VersionFields):
    """A new model and its first version."""

    name: ModelName
    limits: LimitsBody | None = None  # over all callers together
    aliases: Aliases = ()
    fallbacks: Fallbacks = ()  # models that answer where this one cannot, in order
    objectives: ObjectivesBody | None = None


class ModelChange(RequestBody):
    """What is to change; what is not named stays. `limits` and `objectives` replace all of theirs;
    null: none."""

    limits: LimitsBody | None = None  # over all callers together
    active: bool | None = None  # an inactive model answers nobody
    aliases: Aliases | None = None  # replaces all of them
    fallbacks: Fallbacks | None = None  # replaces all of them
    objectives: ObjectivesBody | None = None
    targets: Annotated[dict[str, Weight], Field(max_length=100)] | None = None  # version: share


class ModelView(BaseModel):
    """A logical model and its versions."""

    id: str
    name: str
    active: bool
    aliases: list[str]
    fallbacks: list[str]
    objectives: ObjectivesView | None
    versions: list[VersionView]
    create_time: datetime.datetime
    limits: LimitsView | None


@router.post("/models", status_code=201)
def create_model(body: ModelCreate, context: Context, request: Request) -> ModelView:
    """Create a model with its first version, which gets all of its traffic."""
    reject_id_as_name(body.name)
    store = context.database.store
    models = store.list(Model)
    check_names_free(models, "", (body.name, *body.aliases))
    check_fallbacks(models, body.name, body.fallbacks)
    model = Model(
        id=new_id(Model.id_prefix, context.clock),
        name=body.name,
        create_time=context.clock.wall_s(),
        limits=limits_of(body.limits),
        aliases=body.aliases,
        fallbacks=body.fallbacks,
        objectives=objectives_of(body.objectives),
    )
    version = version_of(context, model, "v1", body, actor_of(request).name)
    model = store.create(model)
    version = store.create(version)
    model = store.update(msgspec.structs.replace(model, targets=(WeightedTarget(version.id),)))
    return _model_view(model, [version])


@router.get("/models")
def list_models(
    context: Context,
    search: Annotated[str, Query(max_length=100)] = "",
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[ModelView]:
    """List models with their versions; `search` is in a name, an alias or a version's metadata."""
    store = context.database.store
    versions = store.list(ModelVersion)
    models = [model for model in store.list(Model) if is_found(search, model, versions)]
    return page_of(models, after, limit, lambda model: _model_view(model, versions))


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
    if body.aliases is not None:
        check_names_free(store.list(Model), found.id, body.aliases)
        changes["aliases"] = body.aliases
    if body.fallbacks is not None:
        check_fallbacks(store.list(Model), found.name, body.fallbacks)
        changes["fallbacks"] = body.fallbacks
    if "objectives" in body.model_fields_set:
        changes["objectives"] = objectives_of(body.objectives)
    if body.targets is not None:
        changes["targets"] = targets_of(store.list(ModelVersion, found.id), body.targets)
    changed = store.update(msgspec.structs.replace(found, **changes))
    return _model_view(changed, store.list(ModelVersion, changed.id))


@router.delete("/models/{model:path}", status_code=204)
def delete_model(model: str, context: Context) -> None:
    """Forget a model and its versions; Conflict while a deployment or another model needs it."""
    store = context.database.store
    with context.database.transaction():
        found = resolve(store, Model, model)
        check_model_unused(store, found)
        for version in store.list(ModelVersion, found.id):
            store.delete(version)
        store.delete(found)


def check_names_free(models: list[Model], own_id: str, names: tuple[str, ...]) -> None:
    """Conflict if another model answers to one of these names."""
    for model in models:
        if model.id != own_id:
            for name in {model.name, *model.aliases}.intersection(names):
                raise Conflict(f"{name!r} is a name of the model {model.name!r} already")


def check_fallbacks(models: list[Model], own_name: str, fallbacks: tuple[str, ...]) -> None:
    """NotFound for a fallback that is no model; InvalidRequest if it is the model itself."""
    known = {model.name for model in models}
    for name in fallbacks:
        if name == own_name:
            raise InvalidRequest("a model is no fallback of itself", param="fallbacks")
        if name not in known:
            raise NotFound(f"there is no model {name!r} to fall back on", param="fallbacks")


def targets_of(versions: list[ModelVersion], weights: dict[str, int]) -> tuple[WeightedTarget, ...]:
    """Shares by version name or id; NotFound names the version that is not there."""
    known = {version.name: version.id for version in versions}
    known |= {version.id: version.id for version in versions}
    for name in weights:
        if name not in known:
            raise NotFound(f"the model has no version {name!r}", param="targets")
    return tuple(WeightedTarget(known[name], weight) for name, weight in weights.items())


def is_found(search: str, model: Model, versions: list[ModelVersion]) -> bool:
    """Whether every word of a search is in what is known of a model."""
    own = [version for version in versions if version.parent_id == model.id]
    words = [model.name, *model.aliases]
    for version in own:
        words += [version.source, version.licence, version.format, version.quantization]
        words += [*version.abilities, version.header.family if version.header else ""]
    text = " ".join(words).casefold()
    return all(word in text for word in search.casefold().split())


def _model_view(model: Model, versions: list[ModelVersion]) -> ModelView:
    return ModelView(
        id=model.id,
        name=model.name,
        active=model.active,
        aliases=list(model.aliases),
        fallbacks=list(model.fallbacks),
        objectives=objectives_view(model.objectives),
        versions=[version_view(item, model) for item in versions if item.parent_id == model.id],
        create_time=moment(model.create_time),
        limits=limits_view(model.limits),
    )
