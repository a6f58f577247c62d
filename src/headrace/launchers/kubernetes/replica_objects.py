"""A replica as Kubernetes objects: a Secret, its pods, a Service, and who may reach it.

One node: a Deployment of one pod, so that the cluster starts it again wherever there is room.
Several nodes: a LeaderWorkerSet of one group, whose leader serves and whose pods live and die
together. The group's size, the leader's address and the pod's number reach the engine by the
variables that the LeaderWorkerSet controller sets; the kubelet puts them into the command
(`spec/node_groups.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace.base.errors import ConfigurationError
from headrace.launchers.kubernetes.parts import (
    KubernetesObject,
    container_security,
    disruption_budget,
    http_probe,
    ingress_policy,
    ingress_rule,
    labels,
    metadata,
    pod_security,
    secret_environment,
    service,
)

replica_label = "headrace.dev/replica"
component = "engine"
gateway_labels = labels("gateway")
control_labels = labels("control")
lora_path = "/adapters"
startup_failures_max = 720  # of 10 s: two hours for weights that come over a network
shared_memory_path = "/dev/shm"  # noqa: S108  # where engines of several devices meet


class ModelCache(StrEnum):
    """Where a node keeps weights between replicas."""

    EMPTY_DIR = "empty_dir"  # nowhere: each pod fetches its own
    HOST_PATH = "host_path"  # a directory of the node
    CLAIM = "claim"  # a claim that many nodes may mount


@dataclass(frozen=True, slots=True)
class ReplicaPod:
    """What a replica needs of a cluster."""

    name: str  # a DNS label
    namespace: str
    image: str
    argv: tuple[str, ...]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)  # may hold secrets
    gateway_ports: tuple[int, ...] = ()  # beside `port`, for those who may reach that
    peer_ports: tuple[int, ...] = ()  # for other replicas
    readiness_path: str = "/health"
    cpu_count: float = 1
    memory_bytes: int = 2 << 30
    device_resource: str = "nvidia.com/gpu"
    device_count: int = 0  # on each node
    node_count: int = 1
    worker_argv: Sequence[str] = ()  # of the pods beside the first; empty: the same
    node_labels: Mapping[str, str] = field(default_factory=dict)
    topology_key: str = ""  # pods of one group share its value: a rack, a block of NVLink
    tolerations: Sequence[Mapping[str, str]] = ()
    cache: ModelCache = ModelCache.EMPTY_DIR
    cache_source: str = ""  # the host's path, or the claim's name
    cache_path: str = "/models"
    lora_claim: str = (
        ""  # mounted at `lora_path`, where deployments' LoRA sources point; empty: none
    )
    grace_s: int = 60

    def __post_init__(self) -> None:
        if self.node_count < 1 or self.device_count < 0:
            raise ConfigurationError("a replica runs on at least one node")
        if self.cache is not ModelCache.EMPTY_DIR and not self.cache_source:
            raise ConfigurationError(f"a model cache of kind {self.cache} needs its source")


def replica_objects(pod: ReplicaPod) -> list[KubernetesObject]:
    """Everything of one replica, in the order in which it is applied."""
    own = labels(component, {replica_label: pod.name})
    return [
        secret(pod, own),
        network_policy(pod, own),
        service(pod.name, pod.namespace, leader_labels(pod, own), ports_of(pod)),
        deployment(pod, own) if pod.node_count == 1 else leader_worker_set(pod, own),
        disruption_budget(pod.name, pod.namespace, own, max_unavailable=0),
    ]


def network_policy(pod: ReplicaPod, own: Mapping[str, str]) -> KubernetesObject:
    """Gateways and the control plane may call; other replicas may fetch KV where there is any, and
    pods of a replica on several nodes may reach each other at all ports."""
    callers = (gateway_labels, control_labels)
    policy = ingress_policy(pod.name, pod.namespace, own, callers, (pod.port, *pod.gateway_ports))
    if pod.node_count > 1:  # its pods choose ports among themselves
        policy["spec"]["ingress"].append({"from": [{"podSelector": {"matchLabels": dict(own)}}]})
    if pod.peer_ports:
        policy["spec"]["ingress"].append(ingress_rule((labels(component),), pod.peer_ports))
    return policy


def ports_of(pod: ReplicaPod) -> dict[str, int]:
    """All that it listens on, by name."""
    more = {f"port-{port}": port for port in (*pod.gateway_ports, *pod.peer_ports)}
    return {"http": pod.port, **more}


def leader_labels(pod: ReplicaPod, own: Mapping[str, str]) -> dict[str, str]:
    """The labels of the pod that answers."""
    if pod.node_count == 1:
        return dict(own)
    return {**own, "leaderworkerset.sigs.k8s.io/worker-index": "0"}


def secret(pod: ReplicaPod, own: Mapping[str, str]) -> KubernetesObject:
    """The environment, which has the engine's key."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(pod.name, pod.namespace, own),
        "type": "Opaque",
        "stringData": dict(pod.environment),
    }


def deployment(pod: ReplicaPod, own: Mapping[str, str]) -> KubernetesObject:
    """One pod, made anew where it can run; the old one is gone before the new one starts."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(pod.name, pod.namespace, own),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(own)},
            "template": {"metadata": {"labels": dict(own)}, "spec": pod_spec(pod)},
        },
    }


def leader_worker_set(pod: ReplicaPod, own: Mapping[str, str]) -> KubernetesObject:
    """A group of pods, one a node; if one of them ends, all are made anew.

    Pods find the leader by a headless Service that the controller makes. A shared one would have
    the set's own name, which is that of our Service already."""
    annotations = {}
    if pod.topology_key:
        annotations["leaderworkerset.sigs.k8s.io/exclusive-topology"] = pod.topology_key
    template = {"metadata": {"labels": dict(own)}, "spec": pod_spec(pod)}
    worker = {"metadata": {"labels": dict(own)}, "spec": pod_spec(pod, serves=False)}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {**metadata(pod.name, pod.namespace, own), "annotations": annotations},
        "spec": {
            "replicas": 1,
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": pod.node_count,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template,
                "workerTemplate": worker,
            },
        },
    }


def pod_spec(pod: ReplicaPod, *, serves: bool = True) -> dict[str, Any]:
    """The engine's container and what it needs; only the leader is asked whether it is ready."""
    container: dict[str, Any] = {
        "name": "engine",
        "image": pod.image,
        "command": list(pod.argv if serves else pod.worker_argv or pod.argv),
        "env": secret_environment(pod.name, sorted(pod.environment)),
        "resources": resources(pod),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "models", "mountPath": pod.cache_path},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108  # the pod's own volume
            {"name": "memory", "mountPath": shared_memory_path},
        ],
    }
    if serves:
        container["ports"] = [
            {"name": name, "containerPort": port} for name, port in ports_of(pod).items()
        ]
        container["startupProbe"] = http_probe(
            pod.readiness_path, pod.port, period_s=10, failures=startup_failures_max
        )
        container["readinessProbe"] = http_probe(
            pod.readiness_path, pod.port, period_s=2, failures=3
        )
    spec: dict[str, Any] = {
        "containers": [container],
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": pod.grace_s,
        "automountServiceAccountToken": False,
        "volumes": [
            {"name": "models", **cache_volume(pod)},
            {"name": "scratch", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if pod.lora_claim:
        adapters = {"name": "adapters", "mountPath": lora_path, "readOnly": True}
        container["volumeMounts"].append(adapters)
        claim = {"claimName": pod.lora_claim, "readOnly": True}
        spec["volumes"].append({"name": "adapters", "persistentVolumeClaim": claim})
    if pod.node_labels:
        spec["nodeSelector"] = dict(pod.node_labels)
    if pod.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pod.tolerations]
    return spec


def resources(pod: ReplicaPod) -> dict[str, Any]:
    """Memory is a bound, so that one replica can't take another's; processor time is a share."""
    requests: dict[str, str] = {
        "cpu": f"{round(pod.cpu_count * 1000)}m",
        "memory": str(pod.memory_bytes),
    }
    limits: dict[str, str] = {"memory": str(pod.memory_bytes)}
    if pod.device_count:
        requests[pod.device_resource] = limits[pod.device_resource] = str(pod.device_count)
    return {"requests": requests, "limits": limits}


def cache_volume(pod: ReplicaPod) -> dict[str, Any]:
    """The volume of the weights."""
    match pod.cache:
        case ModelCache.EMPTY_DIR:
            return {"emptyDir": {}}
        case ModelCache.HOST_PATH:
            return {"hostPath": {"path": pod.cache_source, "type": "DirectoryOrCreate"}}
        case ModelCache.CLAIM:
            return {"persistentVolumeClaim": {"claimName": pod.cache_source}}
