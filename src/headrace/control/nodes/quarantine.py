"""Which node is at fault when replicas do not start: one where what starts elsewhere fails.

    failed starts on a node, in a row, without a success >= 3, and either
      of two deployments or more, or of a deployment that serves on another node

A deployment that starts nowhere is its own fault, and would close every node in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.spec.deployments import Replica, ReplicaState

failed_starts_min = 3
remembered_max = 64  # failed starts of a node


@dataclass(slots=True)
class StartRecord:
    """Starts of one node since the last success: (replica, launch time) to deployment."""

    failed: dict[tuple[str, float], str] = field(default_factory=dict)


class QuarantineWatch:
    """Counts failed starts by what is seen of replicas; told the same twice it counts it once."""

    def __init__(self) -> None:
        self._records: dict[str, StartRecord] = {}

    def suspects(self, replicas: Sequence[Replica]) -> dict[str, str]:
        """Nodes to be closed, with the reason."""
        serving: dict[str, set[str]] = {}  # by deployment and generation, the nodes
        for replica in replicas:
            if replica.node_id and replica.state is ReplicaState.ACTIVE:
                serving.setdefault(of(replica), set()).add(replica.node_id)
                self._records.pop(replica.node_id, None)
        for replica in replicas:
            never_served = replica.first_token_time is None and replica.launch_time is not None
            if replica.node_id and replica.state is ReplicaState.FAILED and never_served:
                record = self._records.setdefault(replica.node_id, StartRecord())
                record.failed[replica.id, replica.launch_time or 0.0] = of(replica)
                while len(record.failed) > remembered_max:
                    del record.failed[next(iter(record.failed))]
        found: dict[str, str] = {}
        for node_id, record in self._records.items():
            owners = set(record.failed.values())
            works_elsewhere = any(serving.get(owner, set()) - {node_id} for owner in owners)
            if len(record.failed) >= failed_starts_min and (len(owners) > 1 or works_elsewhere):
                found[node_id] = f"{len(record.failed)} starts in a row failed there"
        return found

    def forgive(self, node_id: str) -> None:
        """Begin anew with a node that was closed, or opened by an operator."""
        self._records.pop(node_id, None)


def of(replica: Replica) -> str:
    """What replicas that start alike have in common."""
    return f"{replica.parent_id}@{replica.generation}"
