"""Routes for logical models and their immutable versions."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict, InvalidRequest, NotFound
from headrace.base.ids import new_id
from headrace.control.admin.access import actor_of
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.objective_values import (
    ObjectivesBody,
    ObjectivesView,
    objectives_of,
    objectives_view,
)
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import (
    ModelName,
    Name,
    Reference,
    reject_id_as_name,
    resolve,
)
from headrace.control.admin.values import RequestBody, moment
from headrace.control.in_use import check_model_unused, check_version_unused
from headrace.control.version_facts import (
    contradictions,
    with_declared_template,
    with_local_header,
)
from headrace.spec.models import ChatFormat, FileHeader, Model, ModelVersion, WeightedTarget
from headrace.tokenizer.chat_template import source_characters_max
from headrace.weights import catalogue

router = APIRouter()

Source = Annotated[str, Field(min_length=1, max_length=1000)]
ShortText = Annotated[str, Field(max_length=100)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


Aliases = Annotated[tuple[ModelName, ...], Field(max_length=50)]
Fallbacks = Annotated[tuple[ModelName, ...], Field(max_length=10)]
Weight = Annotated[int, Field(ge=0, le=1_000_000)]


class ChatFormatBody(RequestBody):
    """How a model writes conversations, for engines that take a prompt and know no turns."""

    template: Annotated[str, Field(min_length=1, max_length=source_characters_max)]  # Jinja
    end_token: ShortText = ""  # what it calls eos_token


class VersionFields(RequestBody):
    """Where a version's weights come from."""

    source: Source
    sha256: Sha256 | None = None
    context_length: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    licence: ShortText = ""
    format: ShortText = ""
    quantization: ShortText = ""
    parameters: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    capabilities: Annotated[tuple[Name, ...], Field(max_length=20)] = ()
    chat_format: ChatFormatBody | None = None  # in place of the engine's, where that has none


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


class VersionCreate(VersionFields):
    """Another version of a model; it gets the traffic if `activate` says so."""

    model: Reference
    name: Name | None = None  # None: v2, v3, ...
    activate: bool = False


class HeaderView(BaseModel):
    """What a version's own file says of it; empty and null: it does not."""

    format: str
    family: str
    quantization: str
    parameters: int | None
    context_length: int | None
    capabilities: list[str]
    pooling: str  # of an embedding model: mean, first, last, rank
    embedding_size: int | None


class VersionFileView(BaseModel):
    """One of a version's files."""

    name: str
    sha256: str
    size_bytes: int


class VersionView(BaseModel):
    """An immutable version."""

    id: str
    name: str
    model_id: str
    model: str
    source: str
    sha256: str | None  # of its file, or over the names and digests of its files
    files: list[VersionFileView]  # empty: not read yet
    context_length: int | None
    licence: str
    format: str
    quantization: str
    parameters: int | None
    chat_template_sha256: str  # as declared, else the file's own; empty: none, or not read yet
    capabilities: list[str]  # as declared, else as its file says
    header: HeaderView | None  # null: its file was not read yet
    contradictions: list[str]  # what was declared and its file says otherwise
    weight: int  # its share of the model's traffic, against the other versions' weights
    create_time: datetime.datetime
    created_by: str  # who made it, by name; empty: it is older than names are kept


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
    version = _version_of(context, model, "v1", body, actor_of(request).name)
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
    version = store.create(_version_of(context, model, name, body, actor_of(request).name))
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


def known_licence(source: str) -> str:
    """The licence of a source that the catalogue knows."""
    entry = catalogue.find(source)
    return "" if entry is None else entry.licence


def _version_of(
    context: AdminContext, model: Model, name: str, fields: VersionFields, created_by: str
) -> ModelVersion:
    """The version as it will be; InvalidRequest where its file, if it is here, says otherwise."""
    version = ModelVersion(
        id=new_id(ModelVersion.id_prefix, context.clock),
        name=name,
        parent_id=model.id,
        create_time=context.clock.wall_s(),
        source=fields.source,
        sha256=fields.sha256,
        context_length=fields.context_length,
        licence=fields.licence or known_licence(fields.source),
        format=fields.format,
        quantization=fields.quantization,
        parameters=fields.parameters,
        capabilities=fields.capabilities,
        chat_format=chat_format_of(fields.chat_format),
        created_by=created_by,
    )
    return with_local_header(with_declared_template(version))


def chat_format_of(body: ChatFormatBody | None) -> ChatFormat | None:
    """A declared chat template as the store has it."""
    return None if body is None else ChatFormat(body.template, body.end_token)


def _header_view(header: FileHeader | None) -> HeaderView | None:
    return None if header is None else HeaderView(**msgspec.to_builtins(header))


def _model_view(model: Model, versions: list[ModelVersion]) -> ModelView:
    return ModelView(
        id=model.id,
        name=model.name,
        active=model.active,
        aliases=list(model.aliases),
        fallbacks=list(model.fallbacks),
        objectives=objectives_view(model.objectives),
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
        files=[VersionFileView(**msgspec.to_builtins(file)) for file in version.files],
        context_length=version.context_length,
        licence=version.licence,
        format=version.format,
        quantization=version.quantization,
        parameters=version.parameters,
        chat_template_sha256=version.chat_template_sha256,
        capabilities=list(version.abilities),
        header=_header_view(version.header),
        contradictions=[found.words for found in contradictions(version)],
        weight=weights.get(version.id, 0),
        create_time=moment(version.create_time),
        created_by=version.created_by,
    )
