"""The pieces that several Kubernetes objects share. Every object is plain data, ready for YAML."""

from collections.abc import Mapping, Sequence
from typing import Any

KubernetesObject = dict[str, Any]

part_of = "headrace"
manager = "headrace"
user_id = 65_532  # nobody in the usual minimal images


def labels(component: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recommended labels of one component."""
    return {
        "app.kubernetes.io/part-of": part_of,
        "app.kubernetes.io/managed-by": manager,
        "app.kubernetes.io/component": component,
        **(extra or {}),
    }


def metadata(name: str, namespace: str, own_labels: Mapping[str, str]) -> dict[str, Any]:
    """What every object of a namespace begins with."""
    return {"name": name, "namespace": namespace, "labels": dict(own_labels)}


def container_security() -> dict[str, Any]:
    """The restricted pod security standard: nothing that serving needs is missing in it."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> dict[str, Any]:
    """The same for the pod; volumes belong to its user."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user_id,
        "runAsGroup": user_id,
        "fsGroup": user_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def http_probe(path: str, port: int, *, period_s: int, failures: int) -> dict[str, Any]:
    """A probe that asks a path."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def service(
    name: str,
    namespace: str,
    own_labels: Mapping[str, str],
    ports: Mapping[str, int],
    *,
    headless: bool = False,
) -> KubernetesObject:
    """A Service of the pods with these labels."""
    spec: dict[str, Any] = {
        "selector": dict(own_labels),
        "ports": [
            {"name": port_name, "port": port, "targetPort": port}
            for port_name, port in ports.items()
        ],
    }
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, namespace, own_labels),
        "spec": spec,
    }


def disruption_budget(
    name: str, namespace: str, own_labels: Mapping[str, str], max_unavailable: int = 1
) -> KubernetesObject:
    """How many of these pods may be taken away at once, by drains of nodes."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, namespace, own_labels),
        "spec": {
            "maxUnavailable": max_unavailable,
            "selector": {"matchLabels": dict(own_labels)},
        },
    }


def ingress_policy(
    name: str,
    namespace: str,
    own_labels: Mapping[str, str],
    callers: Sequence[Mapping[str, str]],
    ports: Sequence[int],
) -> KubernetesObject:
    """Only pods with one of the callers' labels may connect, and only to these ports.

    Without callers anybody may."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(name, namespace, own_labels),
        "spec": {
            "podSelector": {"matchLabels": dict(own_labels)},
            "policyTypes": ["Ingress"],
            "ingress": [ingress_rule(callers, ports)],
        },
    }


def ingress_rule(callers: Sequence[Mapping[str, str]], ports: Sequence[int]) -> dict[str, Any]:
    """Who may connect to which ports; without callers anybody."""
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if callers:
        rule["from"] = [{"podSelector": {"matchLabels": dict(caller)}} for caller in callers]
    return rule


def secret_environment(secret_name: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Environment variables whose values are a Secret's."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": name}}}
        for name in names
    ]
