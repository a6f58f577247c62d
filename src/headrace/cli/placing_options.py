"""Options of deployments for what replicas need of a machine, and how they are placed.

`--devices` and `--priority`, which the autoscaler's budget knows as well, are in `scaling_options`.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.cli.nodes import labels_of

gib = 1 << 30


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """What one replica needs; a change is a new generation. Not given: as it was."""

    device_types: Annotated[
        list[str] | None, typer.Option("--device-type", help="Any of these; repeatable.")
    ] = None
    device_memory_gib: Annotated[
        float | None, typer.Option(help="Memory that each device must have (GiB).")
    ] = None
    cpus: Annotated[float | None, typer.Option(help="Processors of its own.")] = None
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of the machine, and its bound (GiB).")
    ] = None
    nice: Annotated[
        int | None, typer.Option(min=0, max=19, help="How readily it lets others use them.")
    ] = None
    node_labels: Annotated[
        list[str] | None, typer.Option("--node-label", help="NAME=VALUE it needs; repeatable.")
    ] = None
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Devices that share each layer; default: all.")
    ] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes-per-replica", min=1, help="On Kubernetes and Ray.")
    ] = None


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How replicas are placed; a change moves nothing that runs."""

    gang: Annotated[bool | None, typer.Option("--gang/--no-gang", help="All replicas or none.")] = (
        None
    )
    spread: Annotated[
        bool | None, typer.Option("--spread/--no-spread", help="Each on a node of its own.")
    ] = None
    apart_from: Annotated[
        list[str] | None,
        typer.Option(help="A deployment that is not on the same node; repeatable."),
    ] = None


def resources_body(options: ResourceOptions, devices: int | None) -> dict[str, object] | None:
    """What was said of resources; None if nothing."""
    fields: dict[str, object] = {
        "devices": devices,
        "device_types": options.device_types,
        "device_memory_bytes": bytes_of(options.device_memory_gib),
        "cpu_count": options.cpus,
        "memory_bytes": bytes_of(options.memory_gib),
        "niceness": options.nice,
        "node_labels": labels_of(options.node_labels) if options.node_labels else None,
        "tensor_parallel": options.tensor_parallel,
        "nodes": options.nodes,
    }
    return given(fields)


def placement_body(options: PlacementOptions, priority: int | None) -> dict[str, object] | None:
    """What was said of placement; None if nothing."""
    fields: dict[str, object] = {
        "priority": priority,
        "is_gang": options.gang,
        "is_spread": options.spread,
        "apart_from": options.apart_from,
    }
    return given(fields)


def given(fields: dict[str, object]) -> dict[str, object] | None:
    """The fields that are not None; None if there are none."""
    found = {name: value for name, value in fields.items() if value is not None}
    return found or None


def bytes_of(amount_gib: float | None) -> int | None:
    """GiB in bytes."""
    return None if amount_gib is None else round(amount_gib * gib)
