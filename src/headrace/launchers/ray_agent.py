"""What runs on a Ray node for one replica: an actor that keeps the engine's process.

It is a process launcher of one launch, with a lifeline of its own: however the actor ends, with
its node, by a kill or by order, what it started ends with it. The engine does not inherit the
cluster's token, with which it could run code on any node.

Of a replica that spans several nodes this is the first one's; it owns an actor on each of the
others, which Ray ends with it. The replica runs while the processes on all its nodes do: where one
ends, or its node is lost, the others are ended too, and the launch has ended.
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
from headrace.base.errors import SetupError
from headrace.launchers import lifeline
from headrace.launchers.process import ProcessLauncher
from headrace.launchers.protocol import Launch, LaunchSpec, LaunchState, Place, Resources
from headrace.spec.node_groups import expanded, group_environment

unused_max_s = 300.0  # a place that nothing was started on is given back
agent_calls_max = 4  # at once, so that a look need not wait for a stop
cpu_count_default = 1.0
type_prefix = "accelerator_type:"  # Ray's own name of what a node with such devices has one of
type_share = 0.001  # of it, as Ray itself asks for: any number of launches may
worker_look_s = 2.0  # beyond it an actor on another node counts as before
worker_call_s = 60.0


class ReplicaAgent:
    """One replica's place on a node. Safe from several threads."""

    def __init__(self, name: str, host: str | None, resources: Resources) -> None:
        """`host` is this node's address; None: as Ray says."""
        self._name = name
        self._resources = resources
        self._host = host or node_address()
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-replica-"))
        self._lifeline = lifeline.create()
        self._launcher = ProcessLauncher(
            self._directory / "run",
            self._directory / "logs",
            self._lifeline.descriptor,
            SystemClock(),
            self._host,
        )
        self._lock = threading.Lock()  # of a group: its nodes start and end together
        self._workers = [make_worker(name, rank, resources) for rank in worker_ranks(resources)]
        self._broken: Launch | None = None  # as it ended, because a node beside this one did
        self._used = threading.Event()
        threading.Thread(target=self._end_if_unused, name="unused", daemon=True).start()

    def resources(self) -> Resources:
        """What was reserved for it."""
        return self._resources

    def place(self) -> Place:
        """A free port of this node; of a replica on several, another for its processes."""
        place = self._launcher.place(self._name)
        if not self._workers:
            return place
        return replace(place, group_port=self._launcher.place(self._name).port)

    def start(self, spec: LaunchSpec) -> str:
        """Start the engine, as `ProcessLauncher.start` does. Ray has chosen its processors."""
        self._used.set()
        if not self._workers:
            return self._start_here(spec)
        with self._lock:
            self._broken = None
            self._end_workers(0.0)
            self._start_workers(spec)
            return self._start_here(of_rank(spec, self._host, 0))

    def start_rank(self, spec: LaunchSpec, leader: str, rank: int) -> None:
        """Start a node's part of a replica on several."""
        self._used.set()
        self._start_here(of_rank(spec, leader, rank))

    def look(self) -> Launch | None:
        """The launch, or None if nothing was started."""
        if not self._workers:
            return self._look_here()
        with self._lock:
            launch = self._broken or self._look_here()
            if launch is None or launch.state is LaunchState.ENDED:
                return launch
            ended = self._ended_worker()
            if ended is None:
                return launch
            self._end_here(0.0)
            self._end_workers(0.0)
            self._broken = replace(ended, launch_id=launch.launch_id, name=launch.name)
            return self._broken

    def log(self, bytes_max: int) -> bytes:
        """The newest output of the engine; of several nodes all, the first one's last."""
        own = self._launcher.log(self._name, bytes_max)
        parts = [
            b"node %d:\n%s" % (rank, self._ask(worker.log, bytes_max) or b"")
            for rank, worker in enumerate(self._workers, start=1)
        ]
        if not parts:
            return own
        share = bytes_max // (len(parts) + 1)
        return b"\n".join([*(part[-share:] for part in parts), b"node 0:", own[-share:]])

    def is_running(self) -> bool:
        """Whether the engine runs."""
        launch = self.look()
        return launch is not None and launch.state is LaunchState.RUNNING

    def stop(self, grace_s: float) -> None:
        """End the engine and all that it started, and leave nothing on the node."""
        self._end_here(grace_s)
        self._end_workers(grace_s)
        self._lifeline.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def end(self, grace_s: float) -> None:
        """End the engine; another may be started."""
        self._end_here(grace_s)

    def _start_here(self, spec: LaunchSpec) -> str:
        resources = replace(spec.resources, cpu_count=None)
        return self._launcher.start(replace(spec, resources=resources))

    def _look_here(self) -> Launch | None:
        return next(iter(self._launcher.list()), None)

    def _end_here(self, grace_s: float) -> None:
        for launch in self._launcher.list():
            self._launcher.stop(launch.launch_id, grace_s)

    def _start_workers(self, spec: LaunchSpec) -> None:
        """SetupError if one of them cannot be started, or is lost."""
        calls = [
            worker.start_rank.remote(spec, self._host, rank)
            for rank, worker in enumerate(self._workers, start=1)
        ]
        errors = ray().exceptions
        try:
            ray().get(calls, timeout=worker_call_s)
        except errors.RayTaskError as error:
            raise SetupError(
                f"a node of {self._name} could not be started: {error.cause}"
            ) from None
        except (errors.RayActorError, errors.GetTimeoutError) as error:
            raise SetupError(
                f"a node of {self._name} does not answer ({type(error).__name__})"
            ) from None

    def _end_workers(self, grace_s: float) -> None:
        calls = [worker.end.remote(grace_s) for worker in self._workers]
        if calls:
            ray().wait(calls, num_returns=len(calls), timeout=grace_s + worker_call_s)

    def _ended_worker(self) -> Launch | None:
        """How the first node whose part has ended ended; None if none has."""
        looks = [worker.look.remote() for worker in self._workers]
        ray().wait(looks, num_returns=len(looks), timeout=worker_look_s)
        errors = ray().exceptions
        for rank, look in enumerate(looks, start=1):
            try:
                launch: Launch | None = ray().get(look, timeout=0)
            except errors.GetTimeoutError:
                continue
            except errors.RayActorError:
                return Launch("", "", LaunchState.ENDED, None, f"node {rank} of it is lost")
            if launch is not None and launch.state is LaunchState.ENDED:
                return replace(launch, last_line=f"node {rank}: {launch.last_line}")
        return None

    def _ask(self, method: Any, *arguments: object) -> Any:
        """What a node's actor answers; None if it is lost, or hangs."""
        errors = ray().exceptions
        try:
            return ray().get(method.remote(*arguments), timeout=worker_look_s)
        except (errors.RayActorError, errors.GetTimeoutError):
            return None

    def _end_if_unused(self) -> None:
        if not self._used.wait(unused_max_s):
            self.stop(0.0)
            os._exit(0)


def make_worker(name: str, rank: int, resources: Resources) -> Any:
    """An actor on the n-th node of this one's placement group; it ends with this one."""
    group = ray().util.get_current_placement_group()
    options = actor_options(resources, group, rank)
    made = ray().remote(ReplicaAgent).options(**options)
    return made.remote(name, None, replace(resources, node_count=1))


def worker_ranks(resources: Resources) -> range:
    """The numbers of the nodes beside the first."""
    return range(1, resources.node_count)


def of_rank(spec: LaunchSpec, leader: str, rank: int) -> LaunchSpec:
    """What a node of a replica on several runs."""
    words = group_environment(spec.resources.node_count, leader, rank)
    argv = spec.worker_argv if rank and spec.worker_argv else spec.argv
    environment = {**spec.environment, **words}
    return replace(spec, argv=expanded(argv, words), environment=environment)


def actor_options(resources: Resources, group: Any, bundle: int) -> dict[str, Any]:
    """How an actor is made that has all of one bundle of a placement group."""
    needs = demand(resources)
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    return {
        "num_cpus": needs["CPU"],
        "num_gpus": needs.get("GPU", 0),
        "memory": needs.get("memory"),
        "max_concurrency": agent_calls_max,
        "max_restarts": 0,
        "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle
        ),
    }


def demand(resources: Resources, device_type: str = "") -> dict[str, float]:
    """What a launch needs of each node, in Ray's words; of a device type if one is given."""
    cpu_count = resources.cpu_count
    needs = {"CPU": cpu_count_default if cpu_count is None else cpu_count}
    if resources.device_count:
        needs["GPU"] = float(resources.device_count)
    if device_type:
        needs[type_prefix + device_type] = type_share
    if resources.memory_bytes is not None:
        needs["memory"] = float(resources.memory_bytes)
    return needs


def ray() -> Any:
    """The library: an extra, which is there where this runs."""
    return importlib.import_module("ray")


def node_address() -> str:
    """This node's address for the others."""
    return str(ray().util.get_node_ip_address())
