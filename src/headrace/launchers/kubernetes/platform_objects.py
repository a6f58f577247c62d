"""headrace's own parts as Kubernetes objects: what `headrace manifests` writes.

    control plane   a Deployment; one of its pods leads, by PostgreSQL's lock
    gateways        a StatefulSet, because each has a journal that must outlive its pod
    secrets         the admin token, the pepper, the addresses of PostgreSQL and Redis

Customers come in through a Gateway API route, or whatever else leads to the gateways' Service. The
admin API is reachable inside the cluster alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.launchers.kubernetes.parts import (
    KubernetesObject,
    container_security,
    disruption_budget,
    http_probe,
    ingress_policy,
    labels,
    metadata,
    pod_security,
    secret_environment,
    service,
)

gateway_port = 8080
control_port = 8081
data_path = "/data"
secret_name = "headrace"  # noqa: S105  # a name, not a secret
gateway_name = "headrace-gateway"
control_name = "headrace-control"
model_claim_name = "headrace-models"
model_path = "/models"
drain_s = 30
shared_variables = ("HEADRACE_DATABASE_URL", "HEADRACE_LIMITS_URL")


@dataclass(frozen=True, slots=True)
class Installation:
    """What an operator chooses."""

    namespace: str
    image: str
    database_url: str
    limits_url: str
    admin_token: str
    pepper_base64: str
    gateways: int = 2
    gateways_max: int = 8
    control_planes: int = 2
    journal_size: str = "5Gi"
    model_storage: str = "200Gi"
    model_storage_class: str = ""  # one that many nodes can mount; empty: the cluster's default
    hostname: str = ""  # customers' name of the service; empty: no route is written
    gateway_class: str = ""  # the Gateway that the route hangs on: namespace/name
    lora_claim: str = ""  # a claim with LoRA adapters, which engines mount; empty: none
    otlp_endpoint: str = ""  # a collector's address, of every process; empty: nothing is traced


def platform_objects(chosen: Installation) -> list[KubernetesObject]:
    """Everything that runs headrace itself, in the order in which it is applied."""
    objects = [
        namespace(chosen),
        platform_secret(chosen),
        service_account(chosen),
        role(chosen),
        role_binding(chosen),
        model_claim(chosen),
        *control_plane(chosen),
        *gateways(chosen),
    ]
    if chosen.hostname:
        objects.append(route(chosen))
    return objects


def namespace(chosen: Installation) -> KubernetesObject:
    """A namespace in which pods without the restricted standard are refused."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": chosen.namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }


def platform_secret(chosen: Installation) -> KubernetesObject:
    """Files as the processes read them, and the addresses with their passwords."""
    address = {
        "admin_url": f"http://{control_name}.{chosen.namespace}:{control_port}",
        "token": chosen.admin_token,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(secret_name, chosen.namespace, labels("platform")),
        "type": "Opaque",
        "data": {"pepper": chosen.pepper_base64},
        "stringData": {
            "admin.json": msgspec.json.encode(address).decode(),
            "HEADRACE_DATABASE_URL": chosen.database_url,
            "HEADRACE_LIMITS_URL": chosen.limits_url,
        },
    }


def service_account(chosen: Installation) -> KubernetesObject:
    """Who the control plane is to the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(control_name, chosen.namespace, labels("control")),
    }


def role(chosen: Installation) -> KubernetesObject:
    """What launching replicas needs, in this namespace alone."""
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    rules = (
        ("", ["secrets", "services"], verbs),
        ("", ["pods", "pods/log"], ["get", "list", "watch", "delete"]),
        ("apps", ["deployments"], verbs),
        ("apps", ["deployments/finalizers"], ["update"]),  # owned objects hold their owner back
        ("leaderworkerset.x-k8s.io", ["leaderworkersets"], verbs),
        ("leaderworkerset.x-k8s.io", ["leaderworkersets/finalizers"], ["update"]),
        ("networking.k8s.io", ["networkpolicies"], verbs),
        ("policy", ["poddisruptionbudgets"], verbs),
    )
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(control_name, chosen.namespace, labels("control")),
        "rules": [
            {"apiGroups": [group], "resources": resources, "verbs": allowed}
            for group, resources, allowed in rules
        ],
    }


def role_binding(chosen: Installation) -> KubernetesObject:
    """The control plane may do that."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(control_name, chosen.namespace, labels("control")),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": control_name,
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": control_name, "namespace": chosen.namespace}
        ],
    }


def model_claim(chosen: Installation) -> KubernetesObject:
    """Where the control plane puts weights and every engine reads them."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": chosen.model_storage}},
    }
    if chosen.model_storage_class:
        spec["storageClassName"] = chosen.model_storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(model_claim_name, chosen.namespace, labels("control")),
        "spec": spec,
    }


def control_plane(chosen: Installation) -> list[KubernetesObject]:
    """The control plane's pods, their Service, and who may reach it: pods of the namespace."""
    own = labels("control")
    argv = [
        "headrace", "control", "--data-dir", data_path, "--host", "0.0.0.0",  # noqa: S104
        "--port", str(control_port),
        "--gateway-url", f"http://{gateway_name}.{chosen.namespace}:{gateway_port}",
        "--cache-dir", model_path, "--launcher", "kubernetes",
        "--kubernetes-namespace", chosen.namespace, "--kubernetes-image", chosen.image,
        "--kubernetes-model-claim", model_claim_name,
    ]  # fmt: skip
    if chosen.lora_claim:
        argv += ["--kubernetes-lora-claim", chosen.lora_claim]
    spec = pod(chosen, "control", argv, control_port)
    spec["serviceAccountName"] = control_name
    spec["volumes"] += [
        {"name": "data", "emptyDir": {}},
        {"name": "models", "persistentVolumeClaim": {"claimName": model_claim_name}},
    ]
    spec["containers"][0]["volumeMounts"].append({"name": "models", "mountPath": model_path})
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(control_name, chosen.namespace, own),
            "spec": {
                "replicas": chosen.control_planes,
                "selector": {"matchLabels": own},
                "template": {"metadata": {"labels": own}, "spec": spec},
            },
        },
        service(control_name, chosen.namespace, own, {"http": control_port}),
        disruption_budget(control_name, chosen.namespace, own),
    ]


def gateways(chosen: Installation) -> list[KubernetesObject]:
    """The gateways' pods with their journals, their Service, and how many there are."""
    own = labels("gateway")
    argv = [
        "headrace", "gateway", "--data-dir", data_path, "--host", "0.0.0.0",  # noqa: S104
        "--port", str(gateway_port), "--allow-public", "--drain-timeout", str(drain_s),
    ]  # fmt: skip
    spec = pod(chosen, "gateway", argv, gateway_port)
    spec["automountServiceAccountToken"] = False
    spec["terminationGracePeriodSeconds"] = 2 * drain_s
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": chosen.journal_size}},
        },
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": metadata(gateway_name, chosen.namespace, own),
            "spec": {  # how many there are is the autoscaler's alone: applying this changes none
                "serviceName": gateway_name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": own},
                "template": {
                    "metadata": {"labels": own, "annotations": scrape(gateway_port)},
                    "spec": spec,
                },
                "volumeClaimTemplates": [claim],
                # A gateway that is taken away leaves a journal that is not yet in the ledger.
                "persistentVolumeClaimRetentionPolicy": {
                    "whenScaled": "Retain",
                    "whenDeleted": "Retain",
                },
            },
        },
        service(gateway_name, chosen.namespace, own, {"http": gateway_port}),
        disruption_budget(gateway_name, chosen.namespace, own),
        ingress_policy(gateway_name, chosen.namespace, own, (), (gateway_port,)),
        autoscaler(chosen, own),
    ]


def autoscaler(chosen: Installation, own: Mapping[str, str]) -> KubernetesObject:
    """More gateways when their processors are busy; fewer only slowly, for their streams' sake."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(gateway_name, chosen.namespace, own),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": gateway_name,
            },
            "minReplicas": chosen.gateways,
            "maxReplicas": max(chosen.gateways, chosen.gateways_max),
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 65},
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        },
    }


def route(chosen: Installation) -> KubernetesObject:
    """A Gateway API route from the customers' name to the gateways."""
    parent_namespace, _, parent_name = chosen.gateway_class.rpartition("/")
    parent = {"name": parent_name or gateway_name}
    if parent_namespace:
        parent["namespace"] = parent_namespace
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(gateway_name, chosen.namespace, labels("gateway")),
        "spec": {
            "parentRefs": [parent],
            "hostnames": [chosen.hostname],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                    "backendRefs": [{"name": gateway_name, "port": gateway_port}],
                    "timeouts": {"request": "0s"},  # answers stream for as long as they take
                }
            ],
        },
    }


def pod(chosen: Installation, name: str, argv: list[str], port: int) -> dict[str, Any]:
    """A pod of the platform: its secrets as files and variables, its data on a volume."""
    return {
        "containers": [
            {
                "name": name,
                "image": chosen.image,
                "command": argv,
                "env": [*secret_environment(secret_name, shared_variables), *tracing(chosen)],
                "ports": [{"name": "http", "containerPort": port}],
                "livenessProbe": http_probe("/livez", port, period_s=10, failures=6),
                "readinessProbe": http_probe("/readyz", port, period_s=2, failures=2),
                "resources": {
                    "requests": {"cpu": "500m", "memory": "512Mi"},
                    "limits": {"memory": "2Gi"},
                },
                "securityContext": container_security(),
                "volumeMounts": [
                    {"name": "data", "mountPath": data_path},
                    {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108  # its own volume
                    {
                        "name": "secrets",
                        "mountPath": f"{data_path}/run/admin.json",
                        "subPath": "admin.json",
                    },
                    {"name": "secrets", "mountPath": f"{data_path}/pepper", "subPath": "pepper"},
                ],
            }
        ],
        "securityContext": pod_security(),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(name)},
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "secrets", "secret": {"secretName": secret_name, "defaultMode": 0o400}},
        ],
    }


def tracing(chosen: Installation) -> list[dict[str, str]]:
    """Where spans go; the control plane hands it on to engines."""
    if not chosen.otlp_endpoint:
        return []
    return [{"name": "HEADRACE_OTLP_ENDPOINT", "value": chosen.otlp_endpoint}]


def scrape(port: int) -> dict[str, str]:
    """What tells a usual Prometheus where the metrics are."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }
