"""Where an engine is, for people and probes, and what a request hears that it cannot take."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.base.errors import Unavailable

loading_retry_after_s = 2.0
sleeping_retry_after_s = 5.0


class EngineState(StrEnum):
    """Where the engine is; engine_client.py has the diagram."""

    LOADING = "loading"
    READY = "ready"
    HUNG = "hung"  # it makes no step; it may come back, or it is ended and started again
    RESTARTING = "restarting"
    SLEEPING = "sleeping"  # an operator took its memory; it comes back when woken
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state for people and probes."""

    state: EngineState
    progress: float  # 0..1
    detail: str


def check_available(status: EngineStatus) -> None:
    """Raise Unavailable, with what there is to know, where requests are not even queued."""
    match status.state:
        case EngineState.FAILED:
            raise Unavailable(f"The engine cannot start: {status.detail}")
        case EngineState.LOADING:
            raise Unavailable(
                f"The model is still loading ({status.detail}); try again.",
                retry_after_s=loading_retry_after_s,
                progress=status.progress,
            )
        case EngineState.HUNG:
            raise Unavailable(
                f"The engine does not answer ({status.detail}); try again.",
                retry_after_s=loading_retry_after_s,
            )
        case EngineState.SLEEPING:
            raise Unavailable(
                "The engine sleeps until its operator wakes it; try again.",
                retry_after_s=sleeping_retry_after_s,
            )
