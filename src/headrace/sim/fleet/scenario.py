"""A scenario as data: fleet, traffic and faults, read from TOML; unknown fields are refused.

The shipped ones lie beside this module in `scenarios/`, one file each, and name their sources.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from headrace.base.errors import InvalidRequest, NotFound
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.policies import headrace, policies

scenario_dir = Path(__file__).parent / "scenarios"
file_bytes_max = 1 << 20
Decoded = TypeVar("Decoded")
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Above = Annotated[float, Meta(gt=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deployments of equal replicas, dealt over zones in turn."""

    deployments: Positive = 1
    replicas: Positive  # of each deployment
    zones: Positive = 1
    engine: Literal["exact", "aggregate"] = "aggregate"
    prefix_cache: bool = True
    detect_s: NotNegative = 2.0  # until the control plane sees that a replica is gone
    start_s: NotNegative = 30.0  # from then until a new one is ready


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stream of requests; what is left at 0 is off."""

    name: str
    rate_per_s: Above  # of arrivals; of agents' root calls, of conversations' first turns
    arrivals: Literal["poisson", "gamma", "diurnal", "all-at-once"] = "poisson"
    burstiness: Above = 1.0  # gamma: squared variation of gaps; 1 is Poisson
    period_s: Above = 3600.0  # diurnal: a day of the sinus
    swing: Share = 0.8  # diurnal: 0.8 is from 0.2 to 1.8 of the rate
    fresh: Length  # prompt tokens that nobody shares
    output: Length
    max_tokens: Positive = 2048  # what callers allow; answers are cut there
    groups: Count = 0  # shared beginnings, one drawn for each request
    group_tokens: Count = 0
    group_skew: NotNegative = 0.0  # Zipf exponent over the groups
    variants: Count = (
        0  # whole prompts of a group that recur; 0: each is new after the group's part
    )
    turns: Positive = 1  # a conversation's, each after the last answer
    children: Count = 0  # calls that an agent's root call fans out into once it is answered
    depth: Positive = 1  # levels of them
    pause_s: NotNegative = 0.0  # between an answer and what follows from it, at most
    tenants: Positive = 1
    priority: Literal["interactive", "standard", "batch"] = "standard"  # the class in the queue
    at_once: Count = 0  # of all-at-once: so many are out at a time, the next as one ends; 0: all
    from_s: NotNegative = 0.0
    until_s: NotNegative | None = None  # None: as long as the scenario

    def __post_init__(self) -> None:
        is_job = self.arrivals == "all-at-once" and self.turns == 1 and not self.children
        if self.at_once and not is_job:
            raise ValueError("at_once is for all-at-once arrivals without turns and children")


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that breaks."""

    kind: Literal[
        "crash", "hang", "slow", "flap", "zone-loss", "partition", "clock-jump", "disk-stall"
    ]
    at_s: NotNegative
    replicas: int = 1  # how many, drawn; of zone-loss and partition: how many zones
    factor: Above = 4.0  # slow
    duration_s: NotNegative = 10.0  # slow, flap, partition, disk-stall
    jump_s: float = 3600.0  # clock-jump: by how much the wall clock is set forward; may be negative
    period_s: Above = 3.0  # flap


class NetworkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delays and losses between the gateway and the engines."""

    latency_s: NotNegative = 0.0005
    lost_share: Share = 0.0
    duplicate_share: Share = 0.0
    connect_timeout_s: NotNegative = 2.0
    stall_timeout_s: NotNegative = 120.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas that follow the traffic; `fleet.replicas` of a deployment are there at the start."""

    rule: Literal["headrace", "hpa", "kpa", "apa", "planner", "clairvoyant"] = "headrace"
    min: Count = 1
    max: Positive
    knob: float | None = None  # the rule's one number (`scaling_rules`); None: its usual one
    tokens_per_s: float | None = None  # that a replica can do; None: headrace learns it
    guess_factor: NotNegative = 1.0  # that headrace's first guess of it is off by; 0: it has none


class Money(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prepaid credit; without it nothing is reserved."""

    credit_usd: float  # of each tenant


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as good."""

    ttft_s: Above = 2.0
    tpot_s: Above = 0.1


class Demand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes and what counts as good: all that `headrace capacity` asks of a file."""

    title: str = "traffic"
    duration_s: Above  # of arrivals; then all that runs may end
    policy: str = headrace
    fleet: Fleet = Fleet(replicas=1)
    traffic: Annotated[list[Traffic], Meta(min_length=1)]
    network: NetworkSpec = NetworkSpec()
    objective: Objective = Objective()

    def __post_init__(self) -> None:
        if self.policy != headrace and self.policy not in policies:
            names = ", ".join([headrace, *policies])
            raise ValueError(f"policy {self.policy!r} is unknown; there are {names}")


class Scenario(Demand, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run needs but the seed."""

    fleet: Fleet
    device: DeviceModel
    faults: list[Fault] = []
    money: Money | None = None
    scaling: Scaling | None = None


def names() -> list[str]:
    """The shipped scenarios."""
    return sorted(path.stem for path in scenario_dir.glob("*.toml"))


def load(reference: str) -> Scenario:
    """A shipped scenario by its name, or one from a file that ends with .toml.

    NotFound names those there are; InvalidRequest names the field that is wrong."""
    return decoded(reference, content_of(reference), Scenario)


def load_demand(reference: str) -> Demand:
    """The same, or a file that describes traffic and no device; same errors."""
    content = content_of(reference)
    whole = decoded(reference, content, dict[str, object])
    return decoded(reference, content, Scenario if "device" in whole else Demand)


def content_of(reference: str) -> bytes:
    """The file of a scenario."""
    is_file = reference.endswith(".toml")
    path = Path(reference) if is_file else scenario_dir / f"{reference}.toml"
    if not is_file and reference not in names():
        raise NotFound(
            f"There is no scenario {reference!r}; there are {', '.join(names())}, or give a file "
            "that ends with .toml."
        )
    try:
        with path.open("rb") as file:
            return file.read(file_bytes_max)
    except OSError as error:
        raise NotFound(f"The scenario {path} cannot be read: {error.strerror}.") from None


def decoded(reference: str, content: bytes, kind: type[Decoded]) -> Decoded:
    """What a file says; InvalidRequest if it is no such thing."""
    try:
        return msgspec.toml.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(
            f"The scenario {reference} is not valid: {error}", param="scenario"
        ) from None
