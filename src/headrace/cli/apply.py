"""`headrace apply`: make the platform as YAML files say; with `--dry-run`, show what differs."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
import yaml

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.platform import Platform, platform_command

suffixes = (".yaml", ".yml", ".json")
file_bytes_max = 8 << 20
files_max = 1000


class FieldView(msgspec.Struct, frozen=True):
    """One field that differs."""

    name: str
    now: object
    wanted: object


class ChangeView(msgspec.Struct, frozen=True):
    """One thing that was done, or would be."""

    action: str
    kind: str
    parent: str
    name: str
    fields: list[FieldView]


class Answer(msgspec.Struct, frozen=True):
    """All of them."""

    changes: list[ChangeView]
    applied: bool


def register(app: typer.Typer) -> None:
    """Add the command."""
    platform_command(app, "apply")(apply)


def apply(
    platform: Platform,
    *,
    files: Annotated[
        list[Path], typer.Option("--file", "-f", help="A file or a directory; repeatable.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what differs.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete models and deployments that no file names.")
    ] = False,
) -> None:
    """Make the platform as files say, all or nothing."""
    body = {"documents": read_documents(files), "prune": prune, "dry_run": dry_run}
    answer = platform.client.send("POST", "/manifest", body)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    decoded = msgspec.json.decode(answer, type=Answer)
    rows = [row for change in decoded.changes for row in rows_of(change)]
    output.write_table(
        ("WHAT", "KIND", "NAME", "FIELD", "NOW", "WANTED"), rows, empty="nothing to change"
    )
    if decoded.changes and not decoded.applied:
        output.note("nothing was written; leave --dry-run out to do this")


def rows_of(change: ChangeView) -> list[tuple[str, ...]]:
    """A change as lines of a table, one for each field that differs."""
    name = f"{change.parent}/{change.name}" if change.parent else change.name
    head = (change.action, change.kind, name)
    if not change.fields:
        return [(*head, "", "", "")]
    return [
        (*head, field.name, text_of(field.now), text_of(field.wanted)) for field in change.fields
    ]


def text_of(value: object) -> str:
    """A JSON value as short text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def read_documents(paths: list[Path]) -> list[object]:
    """Every document of every file; ConfigurationError names the file that cannot be read."""
    files = [file for path in paths for file in files_of(path)]
    if len(files) > files_max:
        raise ConfigurationError(f"{len(files):,} files; at most {files_max:,} at once")
    documents: list[object] = []
    for file in files:
        try:
            with file.open("rb") as stream:
                content = stream.read(file_bytes_max + 1)
            if len(content) > file_bytes_max:
                raise ConfigurationError(f"{file} is over {file_bytes_max:,} bytes")
            loaded = list(yaml.safe_load_all(content))
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{file} is no YAML: {error}") from None
        for document in loaded:
            documents += document if isinstance(document, list) else [document]
    return [document for document in documents if document is not None]


def files_of(path: Path) -> list[Path]:
    """A file, or the files of a directory by name."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in suffixes)
