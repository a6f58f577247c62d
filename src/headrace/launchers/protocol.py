"""The launcher protocol: what starts, watches and stops replicas, whatever engine they run.

A launcher knows no engine and no deployment: it gets a command from an adapter, under a name of
the caller's. Its methods block briefly, so asynchronous callers run them in a thread; they may be
called from several threads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headrace.base.errors import ConfigurationError, SetupError

name_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a launch needs of its machine. None: no bound, or the launcher's own default."""

    cpu_count: float | None = None
    memory_bytes: int | None = None
    device_count: int = 0
    device_types: tuple[str, ...] = ()  # any of these, where the launcher chooses; empty: whatever
    node_labels: Mapping[str, str] = field(default_factory=dict)  # a machine that has them all
    niceness: int | None = None  # 0 to 19: how readily it lets others use the processor
    node_count: int = 1  # machines that one launch spans, where the launcher can
    node_id: str = ""  # where its caller gave it a place; empty: the launcher chooses
    device_ids: tuple[str, ...] = ()  # of that node


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launch is to listen, and where its callers reach it then."""

    listen_host: str
    port: int
    address: str  # http://host:port, without a slash at its end
    peer_port: int = 0  # where other replicas may reach it; 0: any port, by its own choice
    group_port: int = 0  # where its own processes on other nodes may; of a launch over several


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run. Secrets are in `environment`, never in `argv`."""

    name: str  # the caller's, for instance a replica's id: letters, digits, `.`, `_` and `-`
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to `environment.inherited`
    watches_lifeline: bool = True  # False: a program of others, which must be ended from outside
    resources: Resources = field(default_factory=Resources)
    image: str = ""  # of a container that has the program; empty: the launcher's own
    readiness_path: str = "/health"  # what a launcher that probes asks
    # Beside the place's own port, for a launcher that closes all others:
    gateway_ports: tuple[int, ...] = ()  # for those who may reach that one
    peer_ports: tuple[int, ...] = ()  # for other replicas
    # On the nodes beside the first, where a launch spans several; empty: the same. Both may have
    # the words of `spec/node_groups.py`.
    worker_argv: tuple[str, ...] = ()
    engine_key_salt: str = ""  # of the key in `environment`, for who writes orders down without it


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
    last_line: str = ""  # of its output once it ended; before that what it waits for, if anything


no_resources = Resources()


class Launcher(Protocol):
    """Runs commands as replicas, and finds them again after a restart of its own process."""

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """Where the next launch of this name should listen.

        It is held for that launch as well as the launcher can: another process may take a port
        of this machine first; that launch ends, and is retried. SetupError if nothing fits."""
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

    def log(self, name: str, bytes_max: int) -> bytes:
        """The newest output of a launch of this name, running or ended, from a line's start.

        Empty if there is none; Unavailable if it cannot be had now."""
        ...

    def close(self) -> None:
        """Give back what this launcher itself holds; launches live on. Safe to repeat."""
        ...


def check_one_node(resources: Resources) -> None:
    """SetupError if a launch is to span several nodes, where this launcher cannot."""
    if resources.node_count > 1:
        raise SetupError(
            f"a replica on {resources.node_count} nodes needs a cluster that starts them together: "
            "--launcher kubernetes or --launcher ray"
        )


def checked_name(name: str) -> str:
    """The name; ConfigurationError if it could lead out of a directory or is too long."""
    if not name_pattern.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is no name for a launch: it has up to 128 letters, digits, `.`, `_` and `-`"
        )
    return name
