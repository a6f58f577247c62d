"""The launcher protocol: what starts, watches and stops replicas, whatever engine they run.

A launcher knows no engine and no deployment: it gets a command from an adapter, under a name of
the caller's. Its methods block briefly, so asynchronous callers run them in a thread; they may be
called from several threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run. Secrets are in `environment`, never in `argv`."""

    name: str  # the caller's, for instance a replica's id: letters, digits, `.`, `_` and `-`
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the launcher's own
    watches_lifeline: bool = True  # False: a program of others, which must be ended from outside


class LaunchState(StrEnum):
    """Whether what was started still runs."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Launch:
    """One start, as it stands now."""

    launch_id: str
    name: str
    state: LaunchState
    exit_status: int | None = None  # ended: minus the signal's number if one ended it; None: lost
    last_line: str = ""  # of its output; filled once it ended


class Launcher(Protocol):
    """Runs commands as replicas, and finds them again after a restart of its own process."""

    def free_port(self) -> int:
        """A port on this launcher's address that nothing listens on now.

        Another process may take it before the launch does; that launch ends, and is retried."""
        ...

    def start(self, spec: LaunchSpec) -> str:
        """Start a command and return its launch id. An ended launch of this name is forgotten.

        Conflict if one of this name runs; SetupError if the command cannot be run."""
        ...

    def list(self) -> list[Launch]:
        """Every launch that runs, or ended and was not forgotten, also those of an earlier life."""
        ...

    def stop(self, launch_id: str, grace_s: float) -> None:
        """Ask a launch to end, end it after `grace_s`, wait until it is gone, and forget it.

        What it started ends too. Nothing happens for an id that is not known, so it is safe to
        repeat."""
        ...
