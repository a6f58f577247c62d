"""`headrace place`: where replicas would go on a described cluster, and why; nothing has to run.

nodes:
  - {name: a, devices: [{type: H100, memory_gib: 80, count: 8, islands: [4, 4]}]}
  - {name: b, devices: [{type: CPU, memory_gib: 256, is_shared: true}], labels: {zone: eu}}
deployments:
  - {name: llama, replicas: 2, options: [{devices: 4, memory_gib: 70}], priority: 10}
  - {name: small, replicas: 3, options: [{devices: 1, memory_gib: 8}], spread: true}
running:
  - {replica: small-0, deployment: small, node: b, devices: [CPU-0], memory_gib: 8}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import yaml

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.settings import AsJson
from headrace.control.placement.cluster import Assignment, Device, Node, Option, Request
from headrace.control.placement.explain import NodeVerdict, explain
from headrace.control.placement.schedule import Schedule, schedule

gib = 1 << 30
file_bytes_max = 4 << 20


class DeviceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some alike devices of a node; `islands` are the sizes of groups with fast links."""

    type: str
    memory_gib: float
    count: int = 1
    islands: tuple[int, ...] = ()
    numa: int = 0
    is_shared: bool = False


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine."""

    name: str
    devices: tuple[DeviceEntry, ...]
    labels: Mapping[str, str] = {}
    taints: tuple[str, ...] = ()
    closed: str = ""


class OptionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run a replica."""

    devices: int
    memory_gib: float
    types: tuple[str, ...] = ()


class DeploymentEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas that want a place."""

    name: str
    options: tuple[OptionEntry, ...]
    replicas: int = 1
    priority: int = 0
    gang: bool = False
    spread: bool = False  # each on a node of its own
    node_labels: Mapping[str, str] = {}
    tolerations: tuple[str, ...] = ()


class RunningEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica that has its place."""

    replica: str
    deployment: str
    node: str
    devices: tuple[str, ...]
    memory_gib: float
    priority: int = 0


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    nodes: tuple[NodeEntry, ...]
    deployments: tuple[DeploymentEntry, ...]
    running: tuple[RunningEntry, ...] = ()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("place", help="Where replicas would go on a described cluster, and why.")(place)


def place(
    *,
    file: Annotated[Path, typer.Option("--file", "-f", help="The cluster, as YAML or JSON.")],
    as_json: AsJson = False,
) -> None:
    """Place every deployment's replicas that do not run yet, by priority."""
    cluster = read(file)
    nodes = [node_of(entry) for entry in cluster.nodes]
    running = [assignment_of(entry) for entry in cluster.running]
    requests = [request_of(entry, running) for entry in cluster.deployments]
    outcome = schedule(nodes, running, requests)
    present = [each for each in running if each not in outcome.preempted]
    reasons = {
        queued.request_name: explain(
            nodes,
            [*present, *outcome.assignments],
            next(each for each in requests if each.name == queued.request_name),
        )
        for queued in outcome.queued
    }
    if as_json:
        output.write_json({"schedule": outcome, "queued_because": reasons})
    else:
        write(outcome, reasons)


def read(file: Path) -> ClusterFile:
    """The file's content; ConfigurationError names what is wrong in it."""
    try:
        if file.stat().st_size > file_bytes_max:
            raise ConfigurationError(f"{file} is over {file_bytes_max:,} bytes")
        content = yaml.safe_load(file.read_text())
        return msgspec.convert(content, ClusterFile)
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{file} is not a cluster: {error}") from None


def node_of(entry: NodeEntry) -> Node:
    """A machine with its devices named by type and number."""
    devices: list[Device] = []
    for kind in entry.devices:
        islands = [str(number) for number, size in enumerate(kind.islands) for _ in range(size)]
        for index in range(kind.count):
            devices.append(
                Device(
                    f"{kind.type}-{len(devices)}",
                    kind.type,
                    round(kind.memory_gib * gib),
                    numa=kind.numa,
                    island=f"{kind.type}/{islands[index]}" if index < len(islands) else "",
                    is_shared=kind.is_shared,
                )
            )
    return Node(entry.name, tuple(devices), entry.labels, frozenset(entry.taints), entry.closed)


def assignment_of(entry: RunningEntry) -> Assignment:
    """A replica on its devices."""
    return Assignment(
        entry.replica,
        entry.deployment,
        entry.node,
        entry.devices,
        round(entry.memory_gib * gib),
        entry.priority,
    )


def request_of(entry: DeploymentEntry, running: list[Assignment]) -> Request:
    """A deployment's replicas but those that run."""
    present = {each.replica for each in running}
    names = (f"{entry.name}-{number}" for number in range(entry.replicas))
    return Request(
        entry.name,
        tuple(name for name in names if name not in present),
        tuple(
            Option(option.devices, round(option.memory_gib * gib), frozenset(option.types))
            for option in entry.options
        ),
        entry.priority,
        entry.gang,
        frozenset({entry.name}) if entry.spread else frozenset(),
        entry.node_labels,
        frozenset(entry.tolerations),
    )


def write(outcome: Schedule, reasons: Mapping[str, list[NodeVerdict]]) -> None:
    """Places, what is ended for them, and why the rest waits."""
    rows = [
        (each.replica, each.node_id, ", ".join(each.device_ids)) for each in outcome.assignments
    ]
    output.write_table(("REPLICA", "NODE", "DEVICES"), rows, empty="nothing has a place")
    for ended in outcome.preempted:
        output.note(f"{ended.replica} on {ended.node_id} is ended for a higher priority")
    for queued in outcome.queued:
        output.note(f"{', '.join(queued.replicas)} wait:")
        for verdict in reasons[queued.request_name]:
            output.note(f"  {verdict.node_id}: {verdict.reason or 'has room for fewer'}")
