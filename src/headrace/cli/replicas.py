"""`headrace replicas`: the engines that run, what each is doing, and what it wrote."""

from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment


class ReplicaView(msgspec.Struct, frozen=True):
    """What is shown of a replica."""

    id: str
    name: str
    deployment: str
    state: str
    node: str
    address: str
    attempts: int
    detail: str
    progress: float | None
    create_time: str


class ReplicaLog(msgspec.Struct, frozen=True):
    """The end of what an engine wrote."""

    replica: str
    text: str


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("replicas", "Running engines: list, logs.", app)
    group.callback()(_group)
    platform_command(group, "list")(list_all)
    platform_command(group, "logs")(logs)


def list_all(
    platform: Platform,
    *,
    deployment: Annotated[str | None, typer.Option(help="Only this deployment's.")] = None,
) -> None:
    """List replicas and their states."""
    platform.show_list(
        platform.client.list("/replicas", {"deployment": deployment}),
        ReplicaView,
        ("NAME", "ID", "DEPLOYMENT", "STATE", "NODE", "ADDRESS", "CREATED", "DETAIL"),
        lambda replica: (
            replica.name,
            replica.id,
            replica.deployment,
            _state(replica),
            replica.node or "-",
            replica.address or "-",
            format_moment(replica.create_time),
            replica.detail or "-",
        ),
        empty="no replicas; `headrace deployments list` shows what is wanted",
    )


def logs(
    platform: Platform,
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help="Its name or id.")],
    *,
    size: Annotated[int, typer.Option(help="So many bytes of it at most.")] = 64 << 10,
) -> None:
    """Show the newest output of a replica's engine, on whatever machine or cluster it runs."""
    path = f"/replicas/{path_of(replica)}/log?size={size}"
    answer = platform.client.get(path)
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
    else:
        typer.echo(msgspec.json.decode(answer, type=ReplicaLog).text, nl=False)


def _group() -> None:
    """Running engines: list, logs."""


def _state(replica: ReplicaView) -> str:
    if replica.progress is None or replica.progress >= 1:
        return replica.state
    return f"{replica.state} {replica.progress:.0%}"
