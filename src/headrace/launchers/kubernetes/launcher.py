"""Replicas as Kubernetes workloads, found again by their labels after any restart.

The order of writes makes a start that is cut short visible and harmless:

    1. the workload with no replicas     the launch exists from here on, as one that ended
    2. Secret, Service, NetworkPolicy    owned by the workload: they go when it goes
       and disruption budget
    3. the workload with one replica     the launch runs

A launcher blocks its callers, so the event loop of its client runs in a thread of its own.
"""

import asyncio
import builtins
import hashlib
import re
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, Conflict, HeadraceError, SetupError
from headrace.base.ids import new_id
from headrace.launchers.kubernetes.cluster import (
    Cluster,
    collection_path,
    connect,
    log_bytes_max,
    object_path,
)
from headrace.launchers.kubernetes.mirror import Mirror
from headrace.launchers.kubernetes.parts import KubernetesObject, labels
from headrace.launchers.kubernetes.pod_states import (
    LogSource,
    Look,
    launch_id_of,
    launch_label,
    look_at,
    name_annotation,
    sources_of,
)
from headrace.launchers.kubernetes.replica_objects import (
    ModelCache,
    ReplicaPod,
    component,
    replica_objects,
)
from headrace.launchers.log_file import line_length_max, newest
from headrace.launchers.protocol import (
    Launch,
    LaunchSpec,
    LaunchState,
    Place,
    Resources,
    checked_name,
    no_resources,
)

T = TypeVar("T")
engine_port = 8000
peer_port = 8001  # where other replicas fetch KV
group_port = 8002  # of the leader, where the processes of a replica on several nodes meet
all_interfaces = "0.0.0.0"  # noqa: S104 -- a pod's own network; a NetworkPolicy says who may come
workload_kinds = (
    ("apps/v1", "Deployment"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
)
dns_label = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
readable_length_max = 50
digest_length = 8
line_bytes_usual = 100  # of a log: how many lines to ask for, of so many bytes
gone_slack_s = 30.0  # after the grace: beyond it the node is taken to be lost
call_timeout_s = 180.0  # above everything that one call waits for
remembered_lines_max = 1000
own_selector = ",".join(f"{key}={value}" for key, value in labels(component).items())


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """Where in a cluster replicas go, and what they are given unless a launch says otherwise."""

    namespace: str
    image: str  # of launches that name none: one that has headrace in it
    model_claim: str = ""  # a claim that many nodes can mount, with the weights
    model_host_path: str = ""  # instead, a directory that every node has: a shared file system
    model_path: str = "/models"  # where the control plane and every engine mount it
    lora_claim: str = ""  # another one, with LoRA adapters, which engines mount at `lora_path`
    environment: Mapping[str, str] = field(default_factory=dict)  # of every engine
    cpu_count: float = 1
    memory_bytes: int = 4 << 30
    device_resource: str = "nvidia.com/gpu"
    topology_key: str = ""  # a label of nodes whose value all pods of a replica share
    tolerated_taints: tuple[str, ...] = ()  # of nodes that are kept for engines, by key
    server: str | None = None  # the API server; None: as the pod or the kubeconfig says

    def __post_init__(self) -> None:
        if self.model_claim and self.model_host_path:
            raise ConfigurationError("weights are on a claim or in a directory of nodes, not both")

    @property
    def model_cache(self) -> ModelCache:
        """Where engines have their weights."""
        if self.model_claim:
            return ModelCache.CLAIM
        return ModelCache.HOST_PATH if self.model_host_path else ModelCache.EMPTY_DIR


class KubernetesLauncher:
    """A launcher in one namespace of one cluster; safe from any thread."""

    def __init__(self, site: KubernetesSite, clock: Clock, look_interval_s: float = 0.5) -> None:
        """Connect. `look_interval_s` is between looks at what is to end."""
        self._site = site
        self._clock = clock
        self._look_interval_s = look_interval_s
        self._busy: set[str] = set()  # names that are being started
        self._busy_lock = threading.Lock()
        self._last_lines: dict[LogSource, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kubernetes-launcher", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._open())
        except HeadraceError:
            self._end_loop()
            raise

    def close(self) -> None:
        """End the watches and connections; replicas live on."""
        if not self._loop.is_closed():
            self._run(self._close())
            self._end_loop()

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """The Service that leads to the pod, whatever node it will be on."""
        host = f"{object_name(checked_name(name))}.{self._site.namespace}"
        return Place(
            all_interfaces, engine_port, f"http://{host}:{engine_port}", peer_port, group_port
        )

    def start(self, spec: LaunchSpec) -> str:
        """Create a workload and return its launch id. An ended launch of this name is forgotten.

        Conflict if one of this name runs; SetupError if the cluster refuses the objects."""
        checked_name(spec.name)
        with self._busy_lock:
            if spec.name in self._busy:
                raise Conflict(f"a launch named {spec.name} is being started already")
            self._busy.add(spec.name)
        try:
            return self._run(self._start(spec))
        finally:
            self._busy.discard(spec.name)

    def list(self) -> builtins.list[Launch]:
        """Every launch that runs, or ended and was not forgotten, whoever started it."""
        return self._run(self._list())

    def stop(self, launch_id: str, grace_s: float) -> None:
        """Delete a workload and its pods, and wait until they are gone.

        Pods of a node that is lost are given up `gone_slack_s` after their grace."""
        self._run(self._stop(launch_id, grace_s))

    def log(self, name: str, bytes_max: int) -> bytes:
        """The end of the output of the pod that answers, or of its container that ended."""
        return self._run(self._log(checked_name(name), bytes_max))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(call_timeout_s)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._cluster = Cluster(await connect(self._site.server))
        self._workloads = [
            Mirror(
                self._cluster,
                collection_path(version, kind, self._site.namespace),
                own_selector,
                optional=kind != "Deployment",
            )
            for version, kind in workload_kinds
        ]
        self._pods = Mirror(
            self._cluster,
            collection_path("v1", "Pod", self._site.namespace),
            own_selector,
            optional=False,
        )

    async def _close(self) -> None:
        for mirror in (*self._workloads, self._pods):
            await mirror.close()
        await self._cluster.close()

    async def _start(self, spec: LaunchSpec) -> str:
        name = object_name(spec.name)
        for version, kind in workload_kinds:
            found = await self._cluster.get(version, kind, self._site.namespace, name)
            if found is None:
                continue
            pods = await self._pods_of(launch_id_of(found))
            if look_at(found, pods).launch.state is LaunchState.RUNNING:
                raise Conflict(f"a launch named {spec.name} runs already; stop it first")
            await self._remove(found, 0.0)
        launch_id = new_id("lau", self._clock)
        parts = replica_objects(self._pod(spec, name))
        (workload,) = [part for part in parts if is_workload(part)]
        mark(workload, spec.name, launch_id)
        try:
            made = await self._cluster.apply(with_replicas(workload, 0))
            for part in parts:
                if part is not workload:
                    part["metadata"]["ownerReferences"] = [owner_reference(made)]
                    await self._cluster.apply(part)
            await self._cluster.apply(workload)
        except HeadraceError as error:
            await self._cluster.delete(object_path(workload), propagation="Background")
            raise SetupError(f"cannot start {spec.name} ({error.message})") from None
        finally:
            self._invalidate()
        return launch_id

    async def _list(self) -> builtins.list[Launch]:
        workloads = [thing for mirror in self._workloads for thing in await mirror.objects()]
        pods = await self._pods.objects()
        looks = [look_at(thing, pods) for thing in workloads if launch_id_of(thing)]
        sources = {look.log for look in looks}
        self._last_lines = {s: line for s, line in self._last_lines.items() if s in sources}
        return [await self._told(look) for look in looks]

    async def _told(self, look: Look) -> Launch:
        """The launch with the last line of its output behind the cluster's own words."""
        launch = look.launch
        if launch.name in self._busy:
            return Launch(launch.launch_id, launch.name, LaunchState.RUNNING)
        if look.log is None:
            return launch
        line = self._last_lines.get(look.log)
        if line is None:
            text = await self._cluster.log(
                self._site.namespace, look.log.pod, previous=look.log.previous
            )
            lines = (line.strip() for line in reversed(text.splitlines()))
            line = next((line for line in lines if line), "")[:line_length_max]
            if len(self._last_lines) < remembered_lines_max:
                self._last_lines[look.log] = line
        words = ": ".join(part for part in (launch.last_line, line) if part)
        return replace(launch, last_line=words)

    async def _log(self, name: str, bytes_max: int) -> bytes:
        workloads = [thing for mirror in self._workloads for thing in await mirror.objects()]
        pods = await self._pods.objects()
        for workload in workloads:
            look = look_at(workload, pods)
            source = look.log or next(iter(sources_of(workload, pods)), None)
            if look.launch.name == name and source is not None:
                text = await self._cluster.log(
                    self._site.namespace,
                    source.pod,
                    previous=source.previous,
                    lines=max(1, bytes_max // line_bytes_usual),
                    bytes_max=max(bytes_max, log_bytes_max),
                )
                return newest(text.encode(), bytes_max)
        return b""

    async def _stop(self, launch_id: str, grace_s: float) -> None:
        for mirror, (version, kind) in zip(self._workloads, workload_kinds, strict=True):
            for found in await mirror.objects():
                if launch_id_of(found) == launch_id:
                    await self._remove({"apiVersion": version, "kind": kind, **found}, grace_s)

    async def _remove(self, workload: KubernetesObject, grace_s: float) -> None:
        """Delete a workload with all that it owns, and wait for the end of that."""
        launch_id = launch_id_of(workload)
        about = workload["metadata"]
        deadline_s = self._clock.monotonic_s() + grace_s + gone_slack_s
        try:
            await self._cluster.delete(object_path(workload), propagation="Foreground")
            await self._end_pods(launch_id, round(grace_s))
            is_forced = False
            while await self._cluster.get(
                workload["apiVersion"], workload["kind"], about["namespace"], about["name"]
            ):
                if not is_forced and self._clock.monotonic_s() >= deadline_s:
                    await self._end_pods(launch_id, 0)
                    is_forced = True
                await asyncio.sleep(self._look_interval_s)
        finally:
            self._invalidate()

    async def _end_pods(self, launch_id: str, grace_s: int) -> None:
        for pod in await self._pods_of(launch_id):
            path = object_path({"apiVersion": "v1", "kind": "Pod", **pod})
            await self._cluster.delete(path, propagation="Background", grace_s=grace_s)

    async def _pods_of(self, launch_id: str) -> builtins.list[KubernetesObject]:
        path = collection_path("v1", "Pod", self._site.namespace)
        pods, _ = await self._cluster.list(path, f"{own_selector},{launch_label}={launch_id}")
        return pods

    def _invalidate(self) -> None:
        for mirror in (*self._workloads, self._pods):
            mirror.invalidate()

    def _pod(self, spec: LaunchSpec, name: str) -> ReplicaPod:
        site, needs = self._site, spec.resources
        return ReplicaPod(
            name=name,
            namespace=site.namespace,
            image=spec.image or site.image,
            argv=spec.argv,
            worker_argv=spec.worker_argv,
            port=engine_port,
            environment={**site.environment, **spec.environment},
            gateway_ports=spec.gateway_ports,
            peer_ports=spec.peer_ports,
            readiness_path=spec.readiness_path,
            cpu_count=site.cpu_count if needs.cpu_count is None else needs.cpu_count,
            memory_bytes=site.memory_bytes if needs.memory_bytes is None else needs.memory_bytes,
            device_resource=site.device_resource,
            device_count=needs.device_count,
            node_count=needs.node_count,
            node_labels=needs.node_labels,
            topology_key=site.topology_key,
            tolerations=[{"key": key, "operator": "Exists"} for key in site.tolerated_taints],
            cache=site.model_cache,
            cache_source=site.model_claim or site.model_host_path,
            cache_path=site.model_path,
            lora_claim=site.lora_claim,
        )


def object_name(name: str) -> str:
    """A DNS label for a launch's name: the name itself where it is one."""
    if dns_label.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:readable_length_max].strip("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:digest_length]
    return f"r-{readable}-{digest}"


def is_workload(thing: KubernetesObject) -> bool:
    """Whether an object runs pods."""
    return (thing["apiVersion"], thing["kind"]) in workload_kinds


def mark(workload: KubernetesObject, name: str, launch_id: str) -> None:
    """Write a launch's identity on a workload and on its pods."""
    about, spec = workload["metadata"], workload["spec"]
    about["annotations"] = {**about.get("annotations", {}), name_annotation: name}
    templates = spec.get("leaderWorkerTemplate")
    pods = (
        [spec["template"]]
        if templates is None
        else [templates["leaderTemplate"], templates["workerTemplate"]]
    )
    for marked in (about, *(pod["metadata"] for pod in pods)):
        marked["labels"] = {**marked["labels"], launch_label: launch_id}


def with_replicas(workload: KubernetesObject, replicas: int) -> KubernetesObject:
    """The same workload with another number of replicas."""
    return {**workload, "spec": {**workload["spec"], "replicas": replicas}}


def owner_reference(owner: KubernetesObject) -> dict[str, Any]:
    """What makes an object go with its owner, and the owner wait for that."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
