"""`headrace models`: logical models and where their weights come from."""

from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.limit_options import (
    LimitOptions,
    LimitsView,
    NoLimits,
    limit_fields,
    limits_change,
)
from headrace.cli.objective_options import ObjectiveOptions, ObjectivesView, objective_fields
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.settings import AsJson
from headrace.cli.version_options import VersionOptions, targets_body, version_body
from headrace.cli.views import changes, format_moment
from headrace.weights import catalogue

Fallback = Annotated[
    list[str] | None,
    typer.Option(
        "--fallback", help="A model that answers where it cannot; repeatable, in their order."
    ),
]


class HeaderView(msgspec.Struct, frozen=True):
    """What is shown of what a version's file says."""

    family: str = ""
    context_length: int | None = None
    pooling: str = ""
    embedding_size: int | None = None


class VersionFileView(msgspec.Struct, frozen=True):
    """What is shown of one of a version's files."""

    name: str
    sha256: str
    size_bytes: int


class VersionView(msgspec.Struct, frozen=True):
    """What is shown of a version."""

    name: str
    source: str
    sha256: str | None
    context_length: int | None
    weight: int
    licence: str
    format: str
    quantization: str
    parameters: int | None
    capabilities: list[str]
    chat_template_sha256: str = ""
    header: HeaderView | None = None
    contradictions: list[str] = []
    files: list[VersionFileView] = []
    created_by: str = ""


class ModelView(msgspec.Struct, frozen=True):
    """What is shown of a model."""

    id: str
    name: str
    active: bool
    aliases: list[str]
    versions: list[VersionView]
    create_time: str
    limits: LimitsView | None = None
    fallbacks: tuple[str, ...] = ()
    objectives: ObjectivesView | None = None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("models", "Logical models: create, list, show, update, catalogue.", app)
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "update")(update)
    platform_command(group, "delete")(delete)
    platform_command(group, "add-version")(add_version)
    platform_command(group, "delete-version")(delete_version)
    group.command("catalogue")(show_catalogue)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="The name that clients ask for.")],
    *,
    source: Annotated[
        str,
        typer.Option(help="Its weights: a catalogue name, a path, or https://, hf://, pypi://."),
    ],
    alias: Annotated[
        list[str] | None, typer.Option(help="Another name for it; repeatable.")
    ] = None,
    fallback: Fallback = None,
    objectives: ObjectiveOptions,
    version: VersionOptions,
) -> None:
    """Create a model with its first version; `headrace deployments create` makes it run."""
    body = {
        "name": name,
        "aliases": alias,
        "fallbacks": fallback,
        **objectives.body(),
        **version_body(source, version),
    }
    platform.show(platform.client.send("POST", "/models", body), ModelView, _fields)


def list_all(
    platform: Platform,
    *,
    search: Annotated[
        str | None, typer.Option(help="Words in names, sources, licences, formats, abilities.")
    ] = None,
) -> None:
    """List models."""
    platform.show_list(
        platform.client.list("/models", {"search": search}),
        ModelView,
        ("NAME", "ID", ">VERSIONS", "SOURCE", "CREATED"),
        lambda model: (
            model.name,
            model.id,
            str(len(model.versions)),
            next((version.source for version in model.versions if version.weight), "-"),
            format_moment(model.create_time),
        ),
        empty="no models yet; create one with `headrace models create NAME --source SOURCE`",
    )


def show(platform: Platform, model: Annotated[str, typer.Argument(help="Its name or id.")]) -> None:
    """Show one model and its versions."""
    answer = platform.client.get(f"/models/{path_of(model, keep_slash=True)}")
    platform.show(answer, ModelView, _fields)


def update(
    platform: Platform,
    model: Annotated[str, typer.Argument(help="Its name or id.")],
    *,
    active: Annotated[
        bool | None, typer.Option("--active/--inactive", help="Whether it answers anybody.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Replaces all other names; repeatable.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="VERSION=WEIGHT, a share of its requests; replaces all; repeatable."),
    ] = None,
    fallback: Fallback = None,
    no_fallbacks: Annotated[
        bool, typer.Option("--no-fallbacks", help="Where it cannot answer, nobody does.")
    ] = False,
    objectives: ObjectiveOptions,
    no_limits: NoLimits = False,
    limits: LimitOptions,
) -> None:
    """Change a model: limits over all of its callers together replace those it had."""
    body = {
        "active": active,
        "aliases": alias,
        "fallbacks": [] if no_fallbacks else fallback,
        "targets": targets_body(target),
        **objectives.body(),
        **limits_change(limits, no_limits),
    }
    path = f"/models/{path_of(model, keep_slash=True)}"
    platform.show(platform.client.send("PATCH", path, changes(body)), ModelView, _fields)


def delete(
    platform: Platform, model: Annotated[str, typer.Argument(help="Its name or id.")]
) -> None:
    """Delete a model and its versions; refused while a deployment needs it."""
    _delete(platform, f"/models/{path_of(model, keep_slash=True)}", model)


def add_version(
    platform: Platform,
    model: Annotated[str, typer.Argument(help="The model's name or id.")],
    *,
    source: Annotated[str, typer.Option(help="Its weights, as for `create`.")],
    name: Annotated[str | None, typer.Option(help="Default: v2, v3, ...")] = None,
    version: VersionOptions,
) -> None:
    """Add a version; `headrace deployments update --version` rolls it out."""
    body = {"model": model, "name": name, **version_body(source, version)}
    answer = platform.client.send("POST", "/versions", body)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        added = msgspec.json.decode(answer, type=VersionView).name
        output.note(
            f"added {added}; `headrace deployments update DEPLOYMENT --version {added}` rolls it "
            "out"
        )


def delete_version(
    platform: Platform,
    version: Annotated[str, typer.Argument(help="MODEL/VERSION, or its id.")],
) -> None:
    """Delete a version; refused while it is in use."""
    _delete(platform, f"/versions/{path_of(version, keep_slash=True)}", version)


def _delete(platform: Platform, path: str, name: str) -> None:
    platform.client.send("DELETE", path)
    if platform.as_json:
        output.write_json({"deleted": name})
    else:
        output.note(f"deleted {name}")


def show_catalogue(
    *,
    search: Annotated[
        str, typer.Option(help="Words of its name, family, licence, tasks or description.")
    ] = "",
    family: Annotated[str | None, typer.Option(help="As in llama, qwen3, bert.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="One of chat, code, reasoning, vision, embeddings, rerank."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="As in Apache-2.0, MIT, gemma.")] = None,
    parameters_max: Annotated[
        float | None, typer.Option(help="At most so many billions of parameters.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that every command knows by name; nothing has to run for it."""
    entries = catalogue.search(
        search,
        family=family,
        task=task,
        licence=licence,
        parameters_max=None if parameters_max is None else round(parameters_max * 1e9),
    )
    if as_json:
        output.write_json(entries)
        return
    rows = [
        (
            entry.name,
            "-" if entry.parameters is None else f"{entry.parameters / 1e9:.3g}B",
            entry.family,
            ", ".join(entry.tasks),
            entry.licence,
            entry.description,
        )
        for entry in entries
    ]
    columns = ("NAME", ">PARAMETERS", "FAMILY", "TASKS", "LICENCE", "WHAT")
    output.write_table(columns, rows, empty="the catalogue has no such model")


def _fields(model: ModelView) -> list[tuple[str, str]]:
    fields = [
        ("name", model.name),
        ("id", model.id),
        ("active", "yes" if model.active else "no"),
        *([("aliases", ", ".join(model.aliases))] if model.aliases else []),
        *([("falls back on", ", ".join(model.fallbacks))] if model.fallbacks else []),
        *objective_fields(model.objectives),
        ("created", format_moment(model.create_time)),
        *limit_fields(model.limits),
    ]
    for version in model.versions:
        fields.append((f"version {version.name}", ", ".join(_version_parts(version))))
        fields += [("  made by", version.created_by)] if version.created_by else []
        fields += [
            ("  file", f"{file.name}, sha256 {file.sha256}, {file.size_bytes} bytes")
            for file in version.files
        ]
        fields += [("  contradiction", words) for words in version.contradictions]
    return fields


def _version_parts(version: VersionView) -> list[str]:
    header = version.header or HeaderView()
    parts = [version.source, f"weight {version.weight}"]
    if version.sha256 is not None:
        parts.append(f"sha256 {version.sha256}")
    if header.family:
        parts.append(f"family {header.family}")
    context_length = version.context_length or header.context_length
    if context_length is not None:
        parts.append(f"context {context_length}")
    if version.parameters is not None:
        parts.append(f"{version.parameters / 1e9:.3g} billion parameters")
    parts += filter(None, [version.licence, version.format, version.quantization])
    if version.chat_template_sha256:
        parts.append(f"chat template {version.chat_template_sha256[:12]}")
    if header.embedding_size is not None:
        parts.append(f"vectors of {header.embedding_size} by {header.pooling or 'no'} pooling")
    return [*parts, *version.capabilities]
