"""What runs on a Ray node for one replica: an actor that keeps the engine's process.

It is a process launcher of one launch, with a lifeline of its own: however the actor ends, with
its node, by a kill or by order, what it started ends with it. The engine does not inherit the
cluster's token, with which it could run code on any node.
"""

import importlib
import os
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.base.clock import SystemClock
from headrace.launchers import lifeline
from headrace.launchers.process import ProcessLauncher
from headrace.launchers.protocol import Launch, LaunchSpec, LaunchState, Place, Resources

unused_max_s = 300.0  # a place that nothing was started on is given back


class ReplicaAgent:
    """One replica's place on a node. Safe from several threads."""

    def __init__(self, name: str, host: str | None, resources: Resources) -> None:
        """`host` is this node's address; None: as Ray says."""
        self._name = name
        self._resources = resources
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-replica-"))
        self._lifeline = lifeline.create()
        self._launcher = ProcessLauncher(
            self._directory / "run",
            self._directory / "logs",
            self._lifeline.descriptor,
            SystemClock(),
            host or node_address(),
        )
        self._used = threading.Event()
        threading.Thread(target=self._end_if_unused, name="unused", daemon=True).start()

    def resources(self) -> Resources:
        """What was reserved for it."""
        return self._resources

    def place(self) -> Place:
        """A free port of this node."""
        return self._launcher.place(self._name)

    def start(self, spec: LaunchSpec) -> str:
        """Start the engine, as `ProcessLauncher.start` does. Ray has chosen its processors."""
        self._used.set()
        resources = replace(spec.resources, cpu_count=None)
        return self._launcher.start(replace(spec, resources=resources))

    def look(self) -> Launch | None:
        """The launch, or None if nothing was started."""
        return next(iter(self._launcher.list()), None)

    def log(self, bytes_max: int) -> bytes:
        """The newest output of the engine."""
        return self._launcher.log(self._name, bytes_max)

    def is_running(self) -> bool:
        """Whether the engine runs."""
        launch = self.look()
        return launch is not None and launch.state is LaunchState.RUNNING

    def stop(self, grace_s: float) -> None:
        """End the engine and all that it started, and leave nothing on the node."""
        for launch in self._launcher.list():
            self._launcher.stop(launch.launch_id, grace_s)
        self._lifeline.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end_if_unused(self) -> None:
        if not self._used.wait(unused_max_s):
            self.stop(0.0)
            os._exit(0)


def node_address() -> str:
    """This node's address for the others."""
    ray: Any = importlib.import_module("ray")  # an extra, which is there where this runs
    return str(ray.util.get_node_ip_address())
