"""What each node shall run and have, read once a change of the store, whatever the heartbeats."""

import threading

import msgspec

from headrace.control.nodes.order_secrets import whole_environment
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import ModelVersion
from headrace.spec.nodes import (
    LaunchOrder,
    ModelOrder,
    Node,
    NodeLaunch,
    NodeOrders,
    NodeReport,
)
from headrace.storage.store import Store


class OrderBook:
    """Orders by node; safe from any thread."""

    def __init__(self, store: Store, report_interval_s: float, pepper: bytes) -> None:
        self._store = store
        self._pepper = pepper
        self._report_interval_s = report_interval_s
        self._lock = threading.Lock()
        self._revision = -1
        self._launches: dict[str, list[LaunchOrder]] = {}
        self._models: dict[str, dict[tuple[str, str | None], ModelOrder]] = {}

    def of(self, node: Node) -> NodeOrders:
        """All that is wanted of a node now."""
        with self._lock:
            revision = self._store.revision()
            if revision != self._revision:
                self._read()
                self._revision = revision  # read after the number: what is newer is read once more
            return NodeOrders(
                node_name=node.name,
                report_interval_s=self._report_interval_s,
                launches=tuple(self._launches.get(node.id, ())),
                models=tuple(self._models.get(node.id, {}).values()),
                inventory_wanted=not node.inventory.devices,
            )

    def _read(self) -> None:
        self._launches = {}
        for order in self._store.list(NodeLaunch):
            ordered = launch_order(order, self._pepper)
            self._launches.setdefault(order.parent_id, []).append(ordered)
        deployments = {deployment.id: deployment for deployment in self._store.list(Deployment)}
        versions = {version.id: version for version in self._store.list(ModelVersion)}
        self._models = {}
        for replica in self._store.list(Replica):
            version = version_of(replica, deployments, versions)
            if version is not None and replica.node_id:
                wanted = model_order(version)
                known = self._models.setdefault(replica.node_id, {})
                known[wanted.source, wanted.sha256] = wanted


def launch_order(order: NodeLaunch, pepper: bytes) -> LaunchOrder:
    """An order as its agent gets it."""
    return LaunchOrder(
        launch_id=order.id,
        replica_id=order.name,
        argv=order.argv,
        environment=whole_environment(pepper, order),
        watches_lifeline=order.watches_lifeline,
        device_ids=order.device_ids,
        cpu_count=order.cpu_count,
        memory_bytes=order.memory_bytes,
        niceness=order.niceness,
    )


def model_order(version: ModelVersion) -> ModelOrder:
    """The files of a model version."""
    return ModelOrder(source=version.source, sha256=version.sha256, files=version.files)


def without_known_files(orders: NodeOrders, report: NodeReport) -> NodeOrders:
    """The same for a node that has some of the models: of these no file is named again.

    A model may have hundreds of files, and orders go out each second."""
    here = {(told.source, told.sha256) for told in report.models if told.path is not None}
    return msgspec.structs.replace(
        orders,
        models=tuple(
            msgspec.structs.replace(wanted, files=())
            if (wanted.source, wanted.sha256) in here
            else wanted
            for wanted in orders.models
        ),
    )


def version_of(
    replica: Replica, deployments: dict[str, Deployment], versions: dict[str, ModelVersion]
) -> ModelVersion | None:
    """The model version that a replica serves; None once it drains, or nobody knows."""
    deployment = deployments.get(replica.parent_id)
    template = None if deployment is None else deployment.template_of(replica.generation)
    if template is None or replica.state is ReplicaState.DRAINING:
        return None
    return versions.get(template.model_version_id)
