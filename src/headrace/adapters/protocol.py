"""The adapter protocol: everything headrace must know about a kind of engine, as pure functions.

An adapter opens no socket and starts no process. The gateway and the control plane do, and ask
the adapter what to send and what an answer means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headrace.adapters.facts import EngineFacts
from headrace.base.errors import HeadraceError
from headrace.protocol.generate_of_chat import ChatWriter
from headrace.spec.disaggregation import ReplicaRole
from headrace.spec.node_groups import NodeGroup
from headrace.spec.public_prompts import PublicPrompt
from headrace.spec.settlements import TokenUsage


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter to load beside the model."""

    name: str
    source: str  # a path where the engine runs, or a reference


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One replica to start. None: the engine's own default."""

    model_path: str  # a file or a directory on this node
    served_model_name: str  # what the engine calls the model in its API
    host: str
    port: int
    api_key: str  # only its gateway knows it
    threads: int | None = None
    context_length: int | None = None  # of one request
    tensor_parallel: int | None = None  # devices that share each layer, over all nodes
    group: NodeGroup | None = None  # the nodes that it spans; None: one
    memory_share: float | None = None  # 0..1 of a device's memory, for weights and KV
    sequences_max: int | None = None  # requests in one step
    prefix_cache: bool | None = None
    quantization: str | None = None  # the engine's own word; None: as the weights are
    kv_events_port: int | None = None  # where it publishes changes of its prefix cache
    loras: tuple[Lora, ...] = ()
    moves_kv: bool = False  # prompts' KV goes to other replicas, and comes from them
    public_prompts: tuple[PublicPrompt, ...] = ()  # that tenants share in its cache
    kv_transfer_port: int = 0  # where they fetch it; 0: a free one
    role: ReplicaRole = ReplicaRole.WHOLE  # its part of a request, where KV moves
    extra_arguments: tuple[str, ...] = ()  # from the operator's deployment, never from a caller


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What a launcher runs. Secrets go into `environment`, never into `argv`."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    watches_lifeline: bool = False  # it ends by itself when its supervisor is gone
    worker_argv: tuple[str, ...] = ()  # on the nodes beside the first; empty: the same


class ReadinessState(StrEnum):
    """What an engine says of itself."""

    STARTING = "starting"  # nothing answers yet
    LOADING = "loading"
    READY = "ready"
    HUNG = "hung"  # it answers and makes no progress
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Readiness:
    """An engine's readiness with its own explanation."""

    state: ReadinessState
    detail: str = ""
    progress: float | None = None  # 0..1 where the engine reports it


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's live load in the terms of our router; None where it does not report one."""

    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage: float | None = None  # 0..1, reclaimable cache excluded
    prompt_tokens_total: int | None = None
    completion_tokens_total: int | None = None
    cached_tokens_total: int | None = None  # of the prompt tokens, those found in a cache
    preemptions_total: int | None = None


@dataclass(frozen=True, slots=True)
class RequestExtras:
    """What a generating request carries for this engine beside the caller's own fields."""

    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)  # of the body; ours win


class ChunkStream(Protocol):
    """A stream of another API as it becomes one of chat chunks."""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the chunks that an event's data becomes; msgspec.DecodeError."""
        ...

    def end(self) -> list[bytes]:
        """The same for the body's end, where no event ends a stream."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """Another API for chats than OpenAI's: where it is, and how both ways are translated."""

    # The path and the body in place of those of /v1/chat/completions, for a model that writes its
    # turns so (None: nobody said how); InvalidRequest names what cannot be asked there.
    request: Callable[[bytes, ChatWriter | None], tuple[str, bytes]]
    # An unstreamed answer, and when it was made (Unix seconds); UpstreamFailed if it is none.
    whole: Callable[[bytes, int], bytes]
    stream: Callable[[int], ChunkStream]  # for one that was begun then
    ends_with_body: bool = False  # no event ends a stream


class EngineAdapter(Protocol):
    """What headrace knows about one kind of engine."""

    @property
    def name(self) -> str:
        """What deployments call it."""
        ...

    @property
    def facts(self) -> EngineFacts:
        """What is known of it without asking."""
        ...

    @property
    def readiness_path(self) -> str:
        """The route that says whether it is ready."""
        ...

    @property
    def metrics_path(self) -> str | None:
        """The route that tells its load; None: it has none."""
        ...

    @property
    def running_usage_field(self) -> str | None:
        """The field of a stream's chunks that tells usage so far; None: none but `usage`."""
        ...

    @property
    def marks_stream_end(self) -> bool:
        """Whether a stream ends with `[DONE]`; if not, usage is its last word."""
        ...

    @property
    def dialect(self) -> Dialect | None:
        """The API that it has for chats; None: OpenAI's, like the rest."""
        ...

    @property
    def output_limit_field(self) -> str:
        """Where a limit of the gateway's own goes."""
        ...

    @property
    def keeps_usage_records(self) -> bool:
        """Whether GET /internal/usage/{request id} tells what a request that ended used."""
        ...

    def command(self, request: LaunchRequest) -> LaunchCommand:
        """The command line that starts one replica."""
        ...

    def served_name(self, model_name: str, model_path: str) -> str:
        """What the engine calls the model that it was started with: ours, where it can be told."""
        ...

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers that authenticate the gateway to this engine."""
        ...

    def readiness(self, status: int, body: bytes) -> Readiness:
        """What an answer of `readiness_path` means."""
        ...

    def load(self, metrics_text: str) -> EngineLoad:
        """The live load in an answer of `metrics_path`; malformed lines are ignored."""
        ...

    def error(self, status: int, body: bytes) -> HeadraceError:
        """An unsuccessful answer as "the caller is wrong", "the engine is wrong" or "try again"."""
        ...

    def url(self, address: str, path: str) -> str:
        """Where an OpenAI route (`/v1/...`) is found on an engine at this address."""
        ...

    def extras(self, *, stream: bool, request_id: str, cache_salt: str) -> RequestExtras:
        """What makes this engine report usage, and keeps tenants' prefix caches apart."""
        ...

    def running_usage(self, value: bytes) -> TokenUsage | None:
        """The usage so far in the JSON value of `running_usage_field`; None if it tells none."""
        ...

    def context_length(self, models_body: bytes, served_model_name: str) -> int | None:
        """The longest context by an answer of /v1/models; None if it does not say."""
        ...
