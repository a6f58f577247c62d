"""The public prompts of a deployment on the command line."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.spec.public_prompts import read_lines

PublicPromptsFile = Annotated[
    Path | None,
    typer.Option(
        "--public-prompts",
        metavar="FILE",
        help='A JSON object a line, {"messages": [...]} or {"prompt": "..."}: what prompts begin '
        "with in common with one of these, all tenants share in the caches of replicas.",
    ),
]


def public_prompt_bodies(path: Path | None) -> list[msgspec.Raw] | None:
    """The file's prompts as the admin API takes them; None if there is no file.

    ConfigurationError says why it cannot be read, or which line is wrong."""
    if path is None:
        return None
    try:
        prompts = read_lines(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--public-prompts {path}: {error}") from None
    return [msgspec.Raw(msgspec.json.encode(prompt)) for prompt in prompts]
