"""`headrace replicas`: the engines that run, and what each is doing."""

from typing import Annotated

import msgspec
import typer

from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment


class ReplicaView(msgspec.Struct, frozen=True):
    """What is shown of a replica."""

    id: str
    name: str
    deployment: str
    state: str
    address: str
    attempts: int
    detail: str
    progress: float | None
    create_time: str


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("replicas", "Running engines: list.", app)
    group.callback()(_group)
    platform_command(group, "list")(list_all)


def list_all(
    platform: Platform,
    *,
    deployment: Annotated[str | None, typer.Option(help="Only this deployment's.")] = None,
) -> None:
    """List replicas and their states."""
    platform.show_list(
        platform.client.list("/replicas", {"deployment": deployment}),
        ReplicaView,
        ("NAME", "ID", "DEPLOYMENT", "STATE", "ADDRESS", "CREATED", "DETAIL"),
        lambda replica: (
            replica.name,
            replica.id,
            replica.deployment,
            _state(replica),
            replica.address or "-",
            format_moment(replica.create_time),
            replica.detail or "-",
        ),
        empty="no replicas; `headrace deployments list` shows what is wanted",
    )


def _group() -> None:
    """Running engines: list."""


def _state(replica: ReplicaView) -> str:
    if replica.progress is None or replica.progress >= 1:
        return replica.state
    return f"{replica.state} {replica.progress:.0%}"
