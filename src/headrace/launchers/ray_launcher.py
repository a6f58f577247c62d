"""Replicas on a Ray cluster: each a detached actor, in a placement group, that runs the engine.

    place    a placement group of one bundle, so that all devices are of one node, and the actor
             in it, which finds a free port on that node; of a replica on several nodes a bundle
             on each, and an actor in each that the first one owns
    start    the actor starts the engine's process
    list     actors of our namespace, by name: also those of an earlier control plane

An actor ends with its node, and its engine with it: the launch is gone, and the control plane
starts another. What is installed on the nodes must be what the control plane has.
"""

import builtins
import importlib
import os
import threading
from collections.abc import Sequence
from typing import Any

from headrace.base.clock import Clock
from headrace.base.errors import (
    ConfigurationError,
    Conflict,
    HeadraceError,
    SetupError,
    Unavailable,
)
from headrace.launchers.protocol import (
    Launch,
    LaunchSpec,
    Place,
    Resources,
    checked_name,
    no_resources,
)
from headrace.launchers.ray_agent import ReplicaAgent, actor_options, demand, type_prefix

namespace = "headrace"
group_prefix = "headrace-replica-"
authentication_variable = "RAY_AUTH_MODE"
place_timeout_s = 20.0
call_timeout_s = 60.0
look_timeout_s = 5.0  # beyond it a launch is told as it was at the last look
stop_slack_s = 30.0  # after the grace: beyond it the actor is killed
look_interval_s = 0.02  # between looks at a name that is to become free
removed_state = "REMOVED"


class RayLauncher:
    """A launcher on one cluster; safe from any thread. A process can use one cluster."""

    def __init__(self, address: str, clock: Clock) -> None:
        """Connect to a cluster at host:port, or the local one with `auto`."""
        self._ray = connected(address)
        self._clock = clock
        self._lock = threading.RLock()  # of whatever makes or ends actors
        self._waiting: set[str] = set()  # names whose room is asked for; their groups are kept
        self._known: dict[str, Launch] = {}

    def close(self) -> None:
        """Nothing is held but the connection, which is the process's; replicas live on."""

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """A free port on the node that has room; the room is reserved for this name.

        SetupError if no node has it now."""
        checked_name(name)
        with self._lock:
            agent = self._agent(name)
            if agent is not None:
                try:
                    fits = self._call(agent.resources) == resources
                    if fits or self._call(agent.is_running):
                        return self._placed(agent)
                except Unavailable:
                    pass  # its node is lost: it is placed anew
                self._remove(name, agent)
        return self._placed(self._make(name, resources))

    def start(self, spec: LaunchSpec) -> str:
        """Start the engine at its place. An ended launch of this name is forgotten.

        Conflict if one of this name runs; SetupError if the program cannot be run."""
        checked_name(spec.name)
        agent = self._agent(spec.name) or self._make(spec.name, spec.resources)
        with self._lock:
            try:
                return str(self._call(agent.start, spec))
            except SetupError:
                self._remove(spec.name, agent)
                raise

    def list(self) -> builtins.list[Launch]:
        """Every launch whose actor lives, whoever started it."""
        with self._lock:
            names = self._names()
            self._give_back(names)
            agents = {name: agent for name in names if (agent := self._agent(name))}
        looks = {name: agent.look.remote() for name, agent in agents.items()}
        if looks:
            self._ray.wait(
                builtins.list(looks.values()), num_returns=len(looks), timeout=look_timeout_s
            )
        launches = [launch for name, ref in looks.items() if (launch := self._seen(name, ref))]
        self._known = {launch.name: launch for launch in launches}
        return launches

    def stop(self, launch_id: str, grace_s: float) -> None:
        """SIGTERM to the engine, SIGKILL to its whole session after `grace_s`; gone on return."""
        for launch in self.list():
            if launch.launch_id != launch_id:
                continue
            with self._lock:
                agent = self._agent(launch.name)
            if agent is not None:
                self._end_engine(agent, grace_s)
            with self._lock:
                self._remove(launch.name, agent)

    def log(self, name: str, bytes_max: int) -> bytes:
        """What the engine's actor keeps of its output; it is gone with the actor."""
        agent = self._agent(checked_name(name))
        return b"" if agent is None else bytes(self._call(agent.log, bytes_max))

    def _end_engine(self, agent: Any, grace_s: float) -> None:
        try:
            self._call(agent.stop, grace_s, timeout_s=grace_s + stop_slack_s)
        except Unavailable:
            return  # its node is lost, or hangs: the actor is killed

    def _placed(self, agent: Any) -> Place:
        place: Place = self._call(agent.place)
        return place

    def _make(self, name: str, resources: Resources) -> Any:
        """Reserve room for an actor, and make it. Nothing else waits for the room."""
        with self._lock:
            if name in self._waiting:
                raise Conflict(f"room for {name} is being asked for already")
            self._waiting.add(name)
        try:
            group = self._reserved(name, resources)
            made = self._ray.remote(ReplicaAgent).options(
                name=name,
                namespace=namespace,
                lifetime="detached",
                **actor_options(resources, group, 0),
            )
            return made.remote(name, None, resources)
        finally:
            self._waiting.discard(name)

    def _reserved(self, name: str, resources: Resources) -> Any:
        """A placement group with room for it. SetupError if the cluster has none now."""
        self._remove_group(name)
        types = self._types_to_try(resources)
        for device_type in types:
            group = self._group(name, resources, device_type)
            if group.wait(place_timeout_s / len(types)):
                return group
            self._ray.util.remove_placement_group(group)
        count = resources.node_count
        who = "no node" if count == 1 else f"no {count} nodes"
        raise SetupError(
            f"{who} of the Ray cluster {'has' if count == 1 else 'have'} room for {name} "
            f"({words_of(resources)}) now; stop something, or add a node"
        )

    def _types_to_try(self, resources: Resources) -> builtins.list[str]:
        """Device types that will do, those that the cluster has where it has any; "" is any."""
        wanted = builtins.list(resources.device_types) if resources.device_count else []
        there = self._ray.cluster_resources()
        return [each for each in wanted if type_prefix + each in there] or wanted or [""]

    def _group(self, name: str, resources: Resources, device_type: str) -> Any:
        """Ask for the room of a launch; all devices of a node that it gets are on that node."""
        count = resources.node_count
        labels = dict(resources.node_labels)
        return self._ray.util.placement_group(
            [demand(resources, device_type)] * count,
            strategy="STRICT_PACK" if count == 1 else "STRICT_SPREAD",
            name=group_prefix + name,
            lifetime="detached",
            bundle_label_selector=[labels] * count if labels else None,
        )

    def _agent(self, name: str) -> Any:
        """The actor of a name, or None."""
        try:
            return self._ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None

    def _names(self) -> builtins.list[str]:
        listed = self._ray.util.list_named_actors(all_namespaces=True)
        return [each["name"] for each in listed if each["namespace"] == namespace]

    def _seen(self, name: str, ref: Any) -> Launch | None:
        """What an actor said; as before if it did not answer in time, None if it is gone."""
        errors = self._ray.exceptions
        try:
            launch: Launch | None = self._ray.get(ref, timeout=0)
        except errors.ActorDiedError:
            return None
        except (errors.GetTimeoutError, errors.RayActorError):
            return self._known.get(name)
        return launch

    def _call(self, method: Any, *arguments: Any, timeout_s: float = call_timeout_s) -> Any:
        """Call an actor. Unavailable if it is gone or does not answer."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(method.remote(*arguments), timeout=timeout_s)
        except errors.RayTaskError as error:
            if isinstance(error.cause, HeadraceError):
                raise error.cause from None
            raise
        except (errors.RayActorError, errors.GetTimeoutError) as error:
            raise Unavailable(
                f"a replica's actor does not answer ({type(error).__name__})"
            ) from None

    def _remove(self, name: str, agent: Any) -> None:
        """End an actor, wait until its name is free, and give its room back."""
        if agent is not None:
            self._ray.kill(agent)
            deadline_s = self._clock.monotonic_s() + call_timeout_s
            pause = threading.Event()
            while self._agent(name) is not None:
                if self._clock.monotonic_s() >= deadline_s:
                    raise Unavailable(f"the actor {name} does not end; trying again")
                pause.wait(look_interval_s)
        self._remove_group(name)

    def _give_back(self, names: Sequence[str]) -> None:
        """Remove the placement groups of actors that ended with their node, or by themselves."""
        for group in self._ray.util.placement_group_table().values():
            if group["name"].startswith(group_prefix) and group["state"] != removed_state:
                name = group["name"].removeprefix(group_prefix)
                if name in names or name in self._waiting:
                    continue
                if self._agent(name) is None:  # one may have been made since the names were read
                    self._remove_group(name)

    def _remove_group(self, name: str) -> None:
        try:
            group = self._ray.util.get_placement_group(group_prefix + name)
        except ValueError:
            return
        self._ray.util.remove_placement_group(group)


def connected(address: str) -> Any:
    """The Ray library, connected; with Ray's token authentication unless the operator says not.

    ConfigurationError if the extra is not installed, or no cluster answers."""
    os.environ.setdefault(authentication_variable, "token")
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError:
        raise ConfigurationError("replicas on Ray need Ray: pip install 'headrace[ray]'") from None
    try:
        if not ray.is_initialized():
            ray.init(
                address=address, namespace=namespace, log_to_driver=False, configure_logging=False
            )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigurationError(
            f"no Ray cluster can be used at {address} ({error}); start one with `ray start`, and "
            "give its token in RAY_AUTH_TOKEN (RAY_AUTH_MODE=disabled for a cluster without)"
        ) from None
    if ray.get_runtime_context().namespace != namespace:
        raise ConfigurationError(
            f"this process uses Ray in another namespace than {namespace}; run the control plane "
            "in a process of its own"
        )
    return ray


def words_of(resources: Resources) -> str:
    """What a launch needs, for people."""
    needs = [f"{key} {value:g}" for key, value in demand(resources).items()]
    if resources.device_count and resources.device_types:
        needs.append(f"of type {' or '.join(resources.device_types)}")
    return ", ".join([*needs, *(f"{key}={value}" for key, value in resources.node_labels.items())])
