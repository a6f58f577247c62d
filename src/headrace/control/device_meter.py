"""Adds up how long replicas hold devices, a look at a time, for what they cost.

A replica holds its devices from its launch to its end, whether it serves or not. The time between
two looks of the same leader counts; what passes while nobody leads is not made up.
"""

import datetime
from collections import Counter
from collections.abc import Sequence

from headrace.base.clock import Clock
from headrace.spec.costs import DeviceUse
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.nodes import Node
from headrace.storage.database import Database

look_interval_s = 60.0
gap_max_s = 3 * look_interval_s  # a longer one is no time between looks, but a pause
cpu_type = "CPU"
any_accelerator = "accelerator"  # where its type is not known


class DeviceMeter:
    """Keeps the sums of `storage.device_uses`; synchronous."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._looked_s: float | None = None

    def look(self) -> None:
        """Count the time since the last look for everything that holds devices now."""
        now_s = self._clock.monotonic_s()
        looked_s, self._looked_s = self._looked_s, now_s
        if looked_s is None or now_s - looked_s > gap_max_s:
            return
        store = self._database.store
        replicas = [replica for replica in store.list(Replica) if replica.launch_id]
        nodes = {node.id: node for node in store.list(Node)}
        deployments = {deployment.id: deployment for deployment in store.list(Deployment)}
        wall_s = self._clock.wall_s()
        day = datetime.datetime.fromtimestamp(wall_s, datetime.UTC).date().isoformat()
        busy = self._busy_ids(wall_s)
        held = holdings(replicas, nodes, deployments)
        self._database.device_uses.add(
            [
                DeviceUse(
                    day=day,
                    replica_id=replica.id,
                    device_type=device_type,
                    deployment_id=replica.parent_id,
                    model=replica.model_name,
                    held_s=count * (now_s - looked_s),
                    busy_s=count * (now_s - looked_s) if replica.id in busy else 0.0,
                )
                for replica in replicas
                for device_type, count in held[replica.id].items()
            ]
        )

    def _busy_ids(self, wall_s: float) -> set[str]:
        """The replicas whose last sample saw a request running."""
        samples = self._database.engine_samples.read(wall_s - 2 * look_interval_s, wall_s + 1.0)
        return {replica_id for replica_id, found in samples.items() if found[-1].running_requests}


def holdings(
    replicas: Sequence[Replica], nodes: dict[str, Node], deployments: dict[str, Deployment]
) -> dict[str, dict[str, float]]:
    """How many devices of each type each replica holds, by its id."""
    holders = Counter(
        (replica.node_id, device_id) for replica in replicas for device_id in replica.device_ids
    )
    held: dict[str, dict[str, float]] = {}
    unplaced = sum(not replica.device_ids for replica in replicas)
    for replica in replicas:
        node = nodes.get(replica.node_id)
        types = {} if node is None else {d.id: d.device_type for d in node.inventory.devices}
        counts: dict[str, float] = {}
        for device_id in replica.device_ids:
            name = types.get(device_id, any_accelerator)
            counts[name] = counts.get(name, 0.0) + 1.0 / holders[replica.node_id, device_id]
        if not counts:
            counts = asked_for(deployments.get(replica.parent_id), unplaced)
        held[replica.id] = counts
    return held


def asked_for(deployment: Deployment | None, processor_shares: int) -> dict[str, float]:
    """What a replica holds that no node of ours accounts for: what its deployment asks for."""
    if deployment is None or not deployment.resources.devices:
        return {cpu_type: 1.0 / processor_shares}
    resources = deployment.resources
    name = resources.device_types[0] if resources.device_types else any_accelerator
    return {name: float(resources.devices * resources.nodes)}
