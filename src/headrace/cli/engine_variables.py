"""Environment variables of a deployment's engine on the command line."""

from collections.abc import Mapping
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError

EngineVariables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable of the engine, which inherits few; repeatable; a change replaces all. "
        "No secrets: it is stored and shown.",
    ),
]


def variables_of(texts: list[str] | None) -> dict[str, str] | None:
    """The options as the admin API takes them; None if there are none."""
    if not texts:
        return None
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"--env {text}: write it as NAME=VALUE.")
        variables[name] = value
    return variables


def variables_text(variables: Mapping[str, str]) -> str:
    """Variables in a line."""
    return " ".join(f"{name}={value}" for name, value in variables.items()) or "-"
