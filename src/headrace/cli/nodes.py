"""`headrace nodes`: the machines that run replicas."""

from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Its name or id.")]
LabelOptions = Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE; repeatable.")]
gib = 1 << 30


class DeviceView(msgspec.Struct, frozen=True):
    """What is shown of a device."""

    id: str
    type: str
    memory_bytes: int
    numa: int
    island: str
    replicas: list[str]


class NodeView(msgspec.Struct, frozen=True):
    """What is shown of a node."""

    id: str
    name: str
    state: str
    closed_reason: str
    silent_s: float | None
    region: str
    zone: str
    labels: dict[str, str]
    address: str
    cpu_count: float
    memory_bytes: int
    devices: list[DeviceView]
    replicas: list[str]
    create_time: str
    cache_bytes: int | None = None
    cache_bytes_max: int | None = None


class NodeCreated(NodeView, frozen=True, kw_only=True):
    """A node with its token."""

    token: str


class NodeList(msgspec.Struct, frozen=True):
    """All nodes."""

    items: list[NodeView]
    frozen_reason: str | None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "nodes", "Machines that run replicas: add, list, show, drain, cordon, remove.", app
    )
    platform_command(group, "add")(add)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "label")(label)
    platform_command(group, "cordon")(cordon)
    platform_command(group, "drain")(drain)
    platform_command(group, "uncordon")(uncordon)
    platform_command(group, "token")(token)
    platform_command(group, "remove")(remove)


def add(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    *,
    region: Annotated[str, typer.Option(help="Gateways there prefer its replicas.")] = "",
    zone: Annotated[str, typer.Option(help="Preferred within the region.")] = "",
    labels: LabelOptions = None,
) -> None:
    """Write down a machine that is to join, and print its token once."""
    body = {"name": name, "region": region, "zone": zone, "labels": labels_of(labels)}
    show_token(platform, platform.client.send("POST", "/nodes", body))


def list_all(platform: Platform) -> None:
    """List the nodes."""
    answer = platform.client.list("/nodes")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    found = msgspec.json.decode(answer, type=NodeList)
    rows = [
        (
            node.name,
            node.id,
            state_of(node),
            "/".join(filter(None, (node.region, node.zone))) or "-",
            devices_of(node),
            str(len(node.replicas)),
        )
        for node in found.items
    ]
    output.write_table(
        ("NAME", "ID", "STATE", "WHERE", "DEVICES", ">REPLICAS"),
        rows,
        empty="no nodes; replicas run where the launcher's cluster puts them",
    )
    if found.frozen_reason:
        output.note(f"frozen: {found.frozen_reason}")


def show(platform: Platform, node: NodeArgument) -> None:
    """Show one node with its devices and what runs on each."""
    platform.show(platform.client.get(_path(node)), NodeView, _fields)


def label(
    platform: Platform,
    node: NodeArgument,
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Replaces all.")],
) -> None:
    """Set a node's labels, for deployments to select it by."""
    _change(platform, node, {"labels": labels_of(labels)})


def cordon(platform: Platform, node: NodeArgument) -> None:
    """Let nothing new come to a node; what runs stays."""
    _change(platform, node, {"cordoned": True})


def drain(platform: Platform, node: NodeArgument) -> None:
    """Have what runs on a node move elsewhere, each replica once another serves in its stead."""
    _change(platform, node, {"draining": True})


def uncordon(platform: Platform, node: NodeArgument) -> None:
    """Open a node again: no cordon, no drain, no quarantine."""
    _change(platform, node, {"cordoned": False, "draining": False, "quarantined": False})


def token(platform: Platform, node: NodeArgument) -> None:
    """Make another token for a node; the one before is worth nothing from now on."""
    show_token(platform, platform.client.send("POST", f"{_path(node)}/token", {}))


def remove(
    platform: Platform,
    node: NodeArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Although replicas have their place there.")
    ] = False,
) -> None:
    """Forget a node."""
    platform.client.send("DELETE", _path(node) + ("?force=true" if force else ""))
    if platform.as_json:
        output.write_json({"removed": node})
    else:
        output.note(f"removed {node}; its agent's token is worth nothing any more")


def show_token(platform: Platform, answer: bytes) -> None:
    """Write a node with its token and how to use it."""
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    created = msgspec.json.decode(answer, type=NodeCreated)
    output.write_fields([("name", created.name), ("id", created.id), ("token", created.token)])
    output.note(
        "the token is not shown again; on the machine run `HEADRACE_NODE_TOKEN=... headrace node "
        "join URL`, where URL is the control plane's"
    )


def labels_of(values: list[str] | None) -> dict[str, str]:
    """NAME=VALUE pairs; ConfigurationError for anything else."""
    found: dict[str, str] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--label is NAME=VALUE, not {value!r}")
        found[name] = text
    return found


def state_of(node: NodeView) -> str:
    """The state, and why nothing new comes."""
    if node.closed_reason and node.state == "ready":
        return node.closed_reason.removeprefix("it is ")
    if node.silent_s is not None and node.silent_s >= 10 and node.state == "ready":
        return f"ready, silent for {node.silent_s:.0f} s"
    return node.state


def cache_of(node: NodeView) -> str:
    """How much of weights lies there."""
    if node.cache_bytes is None:
        return "-"
    size = output.format_bytes(node.cache_bytes)
    budget = node.cache_bytes_max
    return size if budget is None else f"{size} of {output.format_bytes(budget)}"


def devices_of(node: NodeView) -> str:
    """Its devices by type, in short."""
    counts: dict[str, list[DeviceView]] = {}
    for device in node.devices:
        counts.setdefault(device.type, []).append(device)
    parts = []
    for kind, devices in counts.items():
        memory = sum(device.memory_bytes for device in devices) / len(devices) / gib
        parts.append(f"{len(devices)} x {kind} {memory:.0f} GiB")
    return ", ".join(parts) or "-"


def _change(platform: Platform, node: str, body: dict[str, object]) -> None:
    answer = platform.client.send("PATCH", _path(node), body)
    platform.show(answer, NodeView, _fields)


def _path(node: str) -> str:
    return f"/nodes/{path_of(node)}"


def _fields(node: NodeView) -> list[tuple[str, str]]:
    fields = [
        ("name", node.name),
        ("id", node.id),
        ("state", state_of(node)),
        ("where", "/".join(filter(None, (node.region, node.zone))) or "-"),
        ("labels", ", ".join(f"{name}={value}" for name, value in node.labels.items()) or "-"),
        ("address", node.address or "-"),
        ("processors", f"{node.cpu_count:g}"),
        ("memory", f"{node.memory_bytes / gib:.1f} GiB"),
        ("weight cache", cache_of(node)),
        ("created", format_moment(node.create_time)),
    ]
    for device in node.devices:
        where = f"NUMA {device.numa}" + (f", {device.island}" if device.island else "")
        users = ", ".join(device.replicas) or "free"
        memory = f"{device.memory_bytes / gib:.1f} GiB"
        fields.append((device.id, f"{device.type}, {memory}, {where}: {users}"))
    return fields
