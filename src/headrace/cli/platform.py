"""What the platform's commands share: the options that find the control plane, and `--json`.

A command is a function of a `Platform` and its own options; `platform_command` gives it the common
ones, so that `headrace keys list --admin-url ...` works everywhere and is declared once. A
parameter whose type is a dataclass is an option group: each field is an option, declared once for
all commands that take the group.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import AdminClient, find_address
from headrace.cli.settings import AdminToken, AdminUrl, AsJson, DataDir

P = ParamSpec("P")
View = TypeVar("View", bound=msgspec.Struct)


class Items(msgspec.Struct):
    """A list as the admin API answers it, for the type of its items to be filled in."""

    items: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Platform:
    """One control plane, and how its answers are to be shown."""

    client: AdminClient
    as_json: bool

    def show(
        self, answer: bytes, view: type[View], fields: Callable[[View], list[tuple[str, str]]]
    ) -> None:
        """Write one thing: the API's JSON, or `fields` of it."""
        if self.as_json:
            output.write_json(msgspec.Raw(answer))
        else:
            output.write_fields(fields(msgspec.json.decode(answer, type=view)))

    def show_list(
        self,
        answer: bytes,
        view: type[View],
        columns: tuple[str, ...],
        row: Callable[[View], tuple[str, ...]],
        *,
        empty: str,
    ) -> None:
        """Write a list: the API's JSON, or a table; `empty` says what to do where it is empty."""
        if self.as_json:
            output.write_json(msgspec.Raw(answer))
            return
        items = msgspec.json.decode(answer, type=Items).items
        rows = [row(msgspec.json.decode(item, type=view)) for item in items]
        output.write_table(columns, rows, empty=empty)


def platform_group(name: str, help_text: str, parent: typer.Typer) -> typer.Typer:
    """A group of commands below `parent`."""
    group = typer.Typer(help=help_text, no_args_is_help=True)
    parent.add_typer(group, name=name)
    return group


def platform_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Platform, P], None]], None]:
    """Register a function of a platform and its own options as a command."""

    def register(function: Callable[Concatenate[Platform, P], None]) -> None:
        declared = list(inspect.signature(function).parameters.values())[1:]
        groups: dict[str, type[Any]] = {
            p.name: p.annotation
            for p in declared
            if isinstance(p.annotation, type) and is_dataclass(p.annotation)
        }
        own = [option for parameter in declared for option in _options_of(parameter)]
        common = list(inspect.signature(_connect).parameters.values())

        @functools.wraps(function)
        def command(*_: P.args, **options: P.kwargs) -> None:
            connection: dict[str, Any] = {
                parameter.name: options.pop(parameter.name) for parameter in common
            }
            for parameter_name, group in groups.items():
                values = {field.name: options.pop(field.name) for field in fields(group)}
                options[parameter_name] = group(**values)
            function(_connect(**connection), *_, **options)

        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *common)]
        # What typer reads: the command's own options, then the common ones.
        command.__dict__["__signature__"] = inspect.Signature(keyword_only)
        command.__annotations__ = {p.name: p.annotation for p in keyword_only}
        app.command(name)(command)

    return register


def _options_of(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """The parameter, or one for each field if it is an option group: a dataclass of options."""
    if not is_dataclass(parameter.annotation):
        return [parameter]
    hints = get_type_hints(parameter.annotation, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(parameter.annotation)
    ]


def _connect(
    *,
    as_json: AsJson = False,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
    data_dir: DataDir,
) -> Platform:
    """The platform that the common options name."""
    return Platform(AdminClient(find_address(admin_url, admin_token, Path(data_dir))), as_json)
