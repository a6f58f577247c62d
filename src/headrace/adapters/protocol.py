"""The adapter protocol: everything headrace must know about a kind of engine, as pure functions.

An adapter opens no socket and starts no process. The gateway and the control plane do, and ask
the adapter what to send and what an answer means.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headrace.base.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One replica to start."""

    model_path: str  # a file on this node
    served_model_name: str  # what the engine calls the model in its API
    host: str
    port: int
    api_key: str  # only its gateway knows it
    threads: int | None = None
    context_length: int | None = None
    extra_arguments: tuple[str, ...] = ()  # from the operator's deployment, never from a caller


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What a launcher runs. Secrets go into `environment`, never into `argv`."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


class ReadinessState(StrEnum):
    """What an engine says of itself."""

    STARTING = "starting"  # nothing answers yet
    LOADING = "loading"
    READY = "ready"
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


class EngineAdapter(Protocol):
    """What headrace knows about one kind of engine."""

    name: str
    readiness_path: str
    metrics_path: str

    def command(self, request: LaunchRequest) -> LaunchCommand:
        """The command line that starts one replica."""
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
