"""`headrace export`: the platform's desired state as YAML, which `headrace apply` takes."""

import sys

import msgspec
import typer
import yaml

from headrace.cli import output
from headrace.cli.platform import Platform, platform_command


class Manifest(msgspec.Struct, frozen=True):
    """What the API answers."""

    documents: list[dict[str, object]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    platform_command(app, "export")(export)


def export(platform: Platform) -> None:
    """Write the desired state; applied to this platform it changes nothing."""
    answer = platform.client.get("/manifest")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    documents = msgspec.json.decode(answer, type=Manifest).documents
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False, explicit_start=True)
