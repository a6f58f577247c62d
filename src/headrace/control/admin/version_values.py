"""What the admin API takes and tells of model versions."""

import datetime
from typing import Annotated

import msgspec
from pydantic import BaseModel, Field

from headrace.base.ids import new_id
from headrace.control.admin.context import AdminContext
from headrace.control.admin.references import Name, Reference
from headrace.control.admin.values import RequestBody, moment
from headrace.control.version_facts import (
    contradictions,
    with_declared_template,
    with_local_header,
)
from headrace.spec.models import ChatFormat, FileHeader, Model, ModelVersion
from headrace.tokenizer.chat_template import source_characters_max
from headrace.weights import catalogue

Source = Annotated[str, Field(min_length=1, max_length=1000)]
ShortText = Annotated[str, Field(max_length=100)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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


def known_licence(source: str) -> str:
    """The licence of a source that the catalogue knows."""
    entry = catalogue.find(source)
    return "" if entry is None else entry.licence


def version_of(
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


def version_view(version: ModelVersion, model: Model) -> VersionView:
    """A version as it is told, with its share of its model's traffic."""
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
