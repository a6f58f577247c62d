"""All that a decision about one deployment may depend on, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.adapters.protocol import Readiness
from headrace.control.rollout_health import GenerationHealth
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.models import ModelVersion
from headrace.weights.file_facts import FileFacts


@dataclass(frozen=True, slots=True)
class ModelFileState:
    """Whether this node has the model's file."""

    path: str | None = None  # where it lies, once it is whole and verified
    detail: str = ""  # what is going on or wrong, for people
    progress: float | None = None  # 0..1 while it is fetched
    facts: FileFacts | None = None  # what it says of itself, once it is here
    version: ModelVersion | None = None  # whose file it is


@dataclass(frozen=True, slots=True)
class ReplicaObservation:
    """What the launcher and a probe say of one replica's process."""

    alive: bool
    last_line: str = ""  # of its output, once it ended
    readiness: Readiness | None = None  # None: it lives and did not answer
    token_came: bool = False  # one real token came back on this look
    running_requests: int | None = None  # None: not known


@dataclass(frozen=True, slots=True)
class World:
    """One deployment, what runs for it, and the time."""

    now_s: float  # wall clock
    deployment: Deployment | None  # None: it was deleted
    replicas: tuple[Replica, ...]
    observations: Mapping[str, ReplicaObservation]  # by replica id
    model_file: ModelFileState
    former_model_file: ModelFileState = ModelFileState(detail="there is no former version")
    is_frozen: bool = False  # so many are silent at once that it is not they who fail
    health: Mapping[int, GenerationHealth] = field(default_factory=dict)  # by generation
    files_on_nodes: Mapping[str, ModelFileState] = field(default_factory=dict)  # by replica id
    has_nodes: bool = False  # replicas get a place before they start
