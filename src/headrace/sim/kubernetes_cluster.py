"""A Kubernetes cluster without nodes: objects, versions, events, and the controllers' consequences.

What of the real thing matters to a launcher is here: server-side apply keeps what others wrote,
every change has a version, events are forgotten after a while (410 Gone), a Deployment gets a pod,
owned objects go with their owner, and a foreground deletion waits for them. A test plays the
kubelet. `kubernetes_server` speaks HTTP over it.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

KubernetesObject = dict[str, Any]
Key = tuple[str, str]  # the path of the collection, and the name
pods_path = "/api/v1/namespaces/{namespace}/pods"
foreground = "foregroundDeletion"


class Refused(Exception):
    """The server's answer to what cannot be done."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as watches tell it."""

    version: int
    path: str
    type: str
    thing: KubernetesObject


@dataclass(slots=True)
class FakeCluster:
    """The state of a cluster. Not safe from several threads; the server's lock is."""

    objects: dict[Key, KubernetesObject] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    logs: dict[tuple[str, bool], str] = field(default_factory=dict)  # by pod, and previous or not
    holds_pods: bool = False  # pods with a grace stay, as on a node that is lost
    version: int = 0
    oldest_version: int = 0  # events up to here are forgotten
    pod_count: int = 0
    has_groups: bool = False  # whether LeaderWorkerSets are installed

    def apply(self, path: str, name: str, wanted: KubernetesObject) -> KubernetesObject:
        """Server-side apply by one manager that takes what it wants."""
        key = (path, name)
        before = self.objects.get(key)
        thing = merged(before or {}, wanted)
        if before is None:
            thing["metadata"]["uid"] = f"uid-{self.version}-{name}"
            self._change(key, "ADDED", thing)
        elif thing != before:
            self._change(key, "MODIFIED", thing)
        self._settle()
        return self.objects[key]

    def get(self, path: str, name: str) -> KubernetesObject:
        """One object."""
        try:
            return self.objects[path, name]
        except KeyError:
            raise Refused(404, f'{path.rpartition("/")[2]} "{name}" not found') from None

    def collection(self, path: str, selector: Mapping[str, str]) -> list[KubernetesObject]:
        """The objects of a collection with these labels, without kind and version, as lists are."""
        if "leaderworkersets" in path and not self.has_groups:
            raise Refused(404, "the server could not find the requested resource")
        return [
            {key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}
            for (its_path, _), thing in self.objects.items()
            if its_path == path and matches(thing, selector)
        ]

    def delete(self, path: str, name: str, propagation: str, grace_s: int | None) -> None:
        """Ask for the end of an object; it may take a while."""
        thing = copy.deepcopy(self.get(path, name))
        if path.endswith("/pods") and self.holds_pods and grace_s != 0:
            self._leave((path, name), thing)
        elif propagation == "Foreground":
            thing["metadata"]["finalizers"] = [foreground]
            self._leave((path, name), thing)
        else:
            self._remove((path, name))
        self._settle()

    def set_status(self, path: str, name: str, status: Mapping[str, Any]) -> None:
        """What a kubelet or a controller reports."""
        self._change(
            (path, name), "MODIFIED", {**self.get(path, name), "status": copy.deepcopy(status)}
        )

    def compact(self) -> None:
        """Forget every event, as etcd does after minutes."""
        self.events.clear()
        self.oldest_version = self.version

    def pods(self) -> list[KubernetesObject]:
        """Every pod."""
        return [thing for (path, _), thing in self.objects.items() if path.endswith("/pods")]

    def _change(self, key: Key, kind: str, thing: KubernetesObject) -> None:
        self.version += 1
        thing = copy.deepcopy(thing)
        thing["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = thing
        self.events.append(Event(self.version, key[0], kind, thing))

    def _leave(self, key: Key, thing: KubernetesObject) -> None:
        thing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._change(key, "MODIFIED", thing)

    def _remove(self, key: Key) -> None:
        self._change(key, "DELETED", self.objects[key])

    def _settle(self) -> None:
        """Let the controllers act until nothing changes."""
        version = -1
        while version != self.version:
            version = self.version
            self._make_pods()
            self._collect()

    def _make_pods(self) -> None:
        for (path, name), thing in list(self.objects.items()):
            leaving = "deletionTimestamp" in thing["metadata"]
            if not path.endswith("/deployments") or leaving or not thing["spec"].get("replicas", 1):
                continue
            if any(self._owned(thing)) and any(
                "deletionTimestamp" not in pod["metadata"]
                for pod in self._owned(thing)
                if pod["kind"] == "Pod"
            ):
                continue
            self._make_pod(name, thing)

    def _make_pod(self, name: str, owner: KubernetesObject) -> None:
        self.pod_count += 1
        namespace, template = owner["metadata"]["namespace"], owner["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{self.pod_count}",
                "namespace": namespace,
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{"uid": owner["metadata"]["uid"]}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        key = (pods_path.format(namespace=namespace), f"{name}-{self.pod_count}")
        self._change(key, "ADDED", pod)

    def _collect(self) -> None:
        """What the garbage collector does."""
        uids = {thing["metadata"].get("uid") for thing in self.objects.values()}
        leaving = {
            thing["metadata"].get("uid")
            for thing in self.objects.values()
            if foreground in thing["metadata"].get("finalizers", ())
        }
        for key, thing in list(self.objects.items()):
            owners = {each["uid"] for each in thing["metadata"].get("ownerReferences", ())}
            stays = self.holds_pods and thing["kind"] == "Pod"
            if owners and (owners & leaving or not owners & uids) and not stays:
                self._remove(key)
        for key, thing in list(self.objects.items()):
            if thing["metadata"].get("uid") in leaving and not any(self._owned(thing)):
                self._remove(key)

    def _owned(self, owner: KubernetesObject) -> Iterator[KubernetesObject]:
        uid = owner["metadata"].get("uid")
        for thing in self.objects.values():
            if uid in {each["uid"] for each in thing["metadata"].get("ownerReferences", ())}:
                yield thing


def merged(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the wanted fields, and the others as they were; lists are taken whole."""
    result = copy.deepcopy(dict(before))
    for key, value in wanted.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = merged(old, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def matches(thing: KubernetesObject, selector: Mapping[str, str]) -> bool:
    """Whether an object has these labels."""
    own: dict[str, str] = thing["metadata"].get("labels", {})
    return selector.items() <= own.items()
