"""What replicas need of a machine, and how they are placed among others."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

DeviceCount = Annotated[int, msgspec.Meta(ge=0, le=4096)]
MemoryBytes = Annotated[int, msgspec.Meta(ge=1)]
CpuCount = Annotated[float, msgspec.Meta(gt=0, le=4096)]
Niceness = Annotated[int, msgspec.Meta(ge=0, le=19)]
Priority = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]


class ReplicaResources(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What one replica needs; a change of it is a new generation. None: no bound."""

    devices: DeviceCount = 0  # accelerators that it has alone; 0: it runs on the processor
    device_types: tuple[str, ...] = ()  # any of these; empty: whatever there is
    device_memory_bytes: MemoryBytes | None = None  # that each of them must have
    cpu_count: CpuCount | None = None  # processors that are its own
    memory_bytes: MemoryBytes | None = None  # of the machine, and the most it may write to
    niceness: Niceness | None = None  # how readily it lets others use the processor
    node_labels: Mapping[str, str] = {}  # a node that has them all
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None  # None: all devices
    nodes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # that one replica spans, where it can

    @property
    def devices_together(self) -> int | None:
        """Devices that share each layer; None: the engine's own default."""
        return self.tensor_parallel or (self.devices * self.nodes if self.devices > 0 else None)


class PlacementPolicy(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How a deployment's replicas are placed; a change of it moves nothing that runs."""

    priority: Priority = 0  # higher goes first, and may end lower ones
    is_gang: bool = False  # all of them or none
    is_spread: bool = False  # each on a node of its own
    apart_from: tuple[str, ...] = ()  # deployments that are not on the same node, by name
