"""Machines that run replicas: what is known of each, what each shall run, what each tells.

A node's agent only speaks outward: it reports (`NodeReport`) and gets its orders in the answer
(`NodeOrders`), which name all that shall run there. So a lost, repeated or late answer does no
harm, and an agent that comes back makes true what is desired by then.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.spec.models import VersionFile
from headrace.spec.resource import Resource


class NodeDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accelerator, or a socket with its memory."""

    id: str  # unique in its node: the driver's own id, or cpu0
    device_type: str  # H100, CPU
    memory_bytes: int
    numa: int = 0
    island: str = ""  # devices of one island are joined by NVLink or the like; empty: of none
    is_shared: bool = False  # a socket; accelerators belong to one replica


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine has, as its agent found it."""

    devices: tuple[NodeDevice, ...] = ()
    cpu_count: float = 0.0  # that replicas may keep busy
    memory_bytes: int = 0
    address: str = ""  # where its replicas listen, for gateways and the control plane


class NodeState(StrEnum):
    """Whether a node takes part."""

    JOINING = "joining"  # it never reported
    READY = "ready"
    LOST = "lost"  # silent for long, and given up: what ran there starts elsewhere


class Node(Resource, frozen=True, kw_only=True, tag="node"):
    """A machine; its agent presents `hrn_<id body>_<secret>`. `local` has none: it is here."""

    kind = "node"
    id_prefix = "nod"

    secret_hmac: bytes = b""  # empty: no agent can report for it
    region: str = ""
    zone: str = ""
    labels: Mapping[str, str] = {}  # the operator's, above the agent's own
    agent_labels: Mapping[str, str] = {}
    inventory: Inventory = Inventory()
    generation: int = 1  # grows with every change of what it has
    state: NodeState = NodeState.JOINING
    state_time: float = 0.0
    is_cordoned: bool = False  # nothing new comes; what runs stays
    is_draining: bool = False  # nothing new comes, and what runs moves elsewhere
    quarantine_until: float | None = None  # replicas that start elsewhere did not start here
    quarantine_reason: str = ""

    @property
    def all_labels(self) -> dict[str, str]:
        """What selectors see."""
        where = {"region": self.region, "zone": self.zone, "node": self.name}
        present = {name: value for name, value in where.items() if value}
        return {**present, **self.agent_labels, **self.labels}

    @property
    def is_local(self) -> bool:
        """Whether the control plane itself runs its replicas."""
        return not self.secret_hmac

    def closed_reason(self, now_s: float) -> str:
        """Why nothing new may come here; empty if it may."""
        if self.state is not NodeState.READY:
            never = "it has not reported yet"
            return never if self.state is NodeState.JOINING else "it is lost: it no longer reports"
        if self.is_draining:
            return "it is being drained"
        if self.is_cordoned:
            return "it is cordoned"
        if self.quarantine_until is not None and now_s < self.quarantine_until:
            return f"it is in quarantine: {self.quarantine_reason}"
        return ""


class LaunchSecret(StrEnum):
    """A secret among a launch's variables."""

    ENGINE_KEY = "engine_key"
    PREFIX_KEY = "prefix_key"


class NodeLaunch(Resource, frozen=True, kw_only=True, tag="node_launch"):
    """What an agent shall run; `parent_id` is the node, `name` the replica's id."""

    kind = "node_launch"
    id_prefix = "nln"

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}  # without what is secret
    secrets: Mapping[str, LaunchSecret] = {}  # by variable
    engine_key_salt: str = ""  # as the replica has it
    watches_lifeline: bool = True
    device_ids: tuple[str, ...] = ()
    cpu_count: float | None = None
    memory_bytes: int | None = None
    niceness: int | None = None


class LaunchPhase(StrEnum):
    """How far an order is."""

    WAITING = "waiting"  # for others to end first
    RUNNING = "running"
    ENDED = "ended"


class LaunchReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One order as it stands on its node."""

    launch_id: str
    phase: LaunchPhase
    exit_status: int | None = None
    last_line: str = ""


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's files on a node."""

    source: str
    sha256: str | None = None
    path: str | None = None  # once they are whole and verified
    detail: str = ""
    progress: float | None = None


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's weight cache."""

    size_bytes: int = 0
    size_bytes_max: int | None = None  # its budget; None: it has none
    removed_count: int = 0  # items that made room, in this life of the agent


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says; the first of a life, and each change of it, has the inventory."""

    life: str  # of the agent's process
    sequence: int  # grows within a life
    inventory: Inventory | None = None
    labels: Mapping[str, str] = {}
    launches: tuple[LaunchReport, ...] = ()
    models: tuple[ModelReport, ...] = ()
    ports: tuple[int, ...] = ()  # free ones, for the next orders
    cache: CacheReport | None = None  # None: nobody has looked yet
    logs: Mapping[str, str] = {}  # the end of the output of launches that it was asked for


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What shall run."""

    launch_id: str
    replica_id: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    watches_lifeline: bool = True
    device_ids: tuple[str, ...] = ()
    cpu_count: float | None = None
    memory_bytes: int | None = None
    niceness: int | None = None


class ModelOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Model files to have."""

    source: str
    sha256: str | None = None
    files: tuple[VersionFile, ...] = ()  # each to be checked; empty: unknown, or it has them


class NodeOrders(msgspec.Struct, frozen=True, kw_only=True):
    """All that shall run on a node and lie in its cache; what is not named ends."""

    node_name: str
    report_interval_s: float
    launches: tuple[LaunchOrder, ...] = ()
    models: tuple[ModelOrder, ...] = ()
    inventory_wanted: bool = False  # the control plane lost it, or never had it
    logs_wanted: tuple[str, ...] = ()  # launches whose output somebody wants to read
