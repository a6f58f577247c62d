"""What placement works with: nodes and their devices, what replicas need, and where they run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator, which one replica has alone, or a CPU socket, whose memory is shared."""

    id: str  # unique in its node
    device_type: str  # H100, CPU
    memory_bytes: int  # what replicas may use
    numa: int = 0
    island: str = ""  # devices of one island are joined by NVLink or the like; empty: of none
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as placement sees it."""

    id: str
    devices: tuple[Device, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: frozenset[str] = frozenset()  # only replicas that tolerate them all come here
    closed_reason: str = ""  # cordoned, silent, quarantined: nothing new comes here
    cpu_count: float | None = None  # None: not known


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a replica: so many devices of one type, each with so much memory."""

    device_count: int
    memory_bytes: int  # of each device
    device_types: frozenset[str] = frozenset()  # empty: any


@dataclass(frozen=True, slots=True)
class Request:
    """Replicas that want a place; each is on one node."""

    name: str  # of the deployment
    replicas: tuple[str, ...]  # their names
    options: tuple[Option, ...]
    priority: int = 0  # higher goes first, and may end lower ones
    is_gang: bool = False  # all of them or none
    apart_from: frozenset[str] = frozenset()  # not on a node with these; its own name: spread out
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: frozenset[str] = frozenset()
    warm_nodes: frozenset[str] = frozenset()  # they have the weights already
    cpu_count: float | None = None  # that a node must have; they are not reserved


class Tenant(NamedTuple):
    """A request that has replicas on a node, and whom they are to be apart from."""

    name: str
    apart_from: frozenset[str]


@dataclass(frozen=True, slots=True, order=True)
class Assignment:
    """A replica on its devices."""

    replica: str
    request_name: str
    node_id: str
    device_ids: tuple[str, ...]
    memory_bytes: int  # of each device
    priority: int = 0
    is_gang: bool = False
    apart_from: frozenset[str] = field(default=frozenset(), compare=False)
