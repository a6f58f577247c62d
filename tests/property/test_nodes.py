"""However nodes die, return, are drained and cordoned, replicas end where they may run.

A small world beside the real `judge`, `plan` and `decide`: machines with processes that load, serve
and die with their machine. After every step: no accelerator has two users, and what serves is never
fewer than it must be because of a drain.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.adapters.protocol import Readiness, ReadinessState
from headrace.control.actions import (
    ChangeDeployment,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    LaunchReplica,
    StopReplica,
)
from headrace.control.decide import ControlTimes, decide
from headrace.control.nodes.placing import PlacingView, plan
from headrace.control.nodes.standing import NodeTimes, judge
from headrace.control.world import ModelFileState, ReplicaObservation, World
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.nodes import Inventory, Node, NodeDevice, NodeState
from headrace.spec.resources import PlacementPolicy, ReplicaResources

times, node_times = ControlTimes(), NodeTimes()
gib = 1 << 30
node_count = 4
steps_to_settle_max = 300


def machine(number: int) -> Node:
    devices = tuple(
        NodeDevice(id=f"GPU-{number}{i}", device_type="H100", memory_bytes=80 * gib)
        for i in range(2)
    )
    return Node(
        id=f"nod_{number}",
        name=f"n{number}",
        create_time=0,
        secret_hmac=b"x",
        state=NodeState.READY,
        inventory=Inventory(devices=devices, cpu_count=8.0),
    )


class Fleet:
    """A store, machines and their processes, as obvious as possible."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes = {f"nod_{i}": machine(i) for i in range(node_count)}
        self.dead_since_s: dict[str, float] = {}
        resources = ReplicaResources(devices=1, device_memory_bytes=gib)
        self.deployments = {
            name: Deployment(
                id=name,
                name=name,
                parent_id="mod",
                create_time=0,
                model_version_id="ver",
                replicas=replicas,
                resources=resources,
                placement=PlacementPolicy(priority=priority),
            )
            for name, replicas, priority in (("low", 3, 0), ("high", 2, 5))
        }
        self.replicas: dict[str, Replica] = {}
        self.processes: dict[str, tuple[str, bool]] = {}  # by replica: node, whether loaded
        self.created = 0

    def step(self) -> None:
        """A second passes: nodes are judged, replicas placed, deployments reconciled."""
        self.now_s += 1.0
        silences = {name: self.now_s - since for name, since in self.dead_since_s.items()}
        standing = judge(tuple(self.nodes.values()), silences, frozenset(self.nodes), node_times)
        for name, state in standing.states.items():
            self.nodes[name] = msgspec.structs.replace(self.nodes[name], state=state)
        view = PlacingView(
            self.now_s,
            tuple(self.nodes.values()),
            tuple(self.deployments.values()),
            tuple(self.replicas.values()),
            frozenset(standing.silent),
        )
        for replica in plan(view):
            self.replicas[replica.id] = replica
        for deployment in self.deployments.values():
            self.reconcile(deployment)
        self.check()

    def seen(self, replica: Replica) -> ReplicaObservation:
        """What the control plane sees of a replica: by its node, as far as that is heard."""
        process = self.processes.get(replica.id)
        if process is None:
            return ReplicaObservation(alive=False)
        node_id, loaded = process
        if self.nodes[node_id].state is NodeState.LOST:
            return ReplicaObservation(alive=False)
        state = ReadinessState.READY if loaded else ReadinessState.LOADING
        return ReplicaObservation(
            alive=True, readiness=Readiness(state), token_came=loaded, running_requests=0
        )

    def reconcile(self, deployment: Deployment) -> None:
        own = tuple(r for r in self.replicas.values() if r.parent_id == deployment.id)
        world = World(
            self.now_s,
            deployment,
            own,
            {replica.id: self.seen(replica) for replica in own},
            ModelFileState(path="/m"),
            has_nodes=True,
        )
        for action in decide(world, times):
            match action:
                case CreateReplica(owner, name):
                    self.created += 1
                    made = Replica(
                        id=f"r{self.created:05d}",
                        name=name,
                        parent_id=owner.id,
                        create_time=self.now_s,
                    )
                    self.replicas[made.id] = made
                case ChangeReplica(replica):
                    self.replicas[replica.id] = replica
                case LaunchReplica(_, _, replica, _):
                    self.launch(replica)
                case StopReplica(replica):
                    self.processes.pop(replica.id, None)
                case DeleteReplica(replica):
                    self.processes.pop(replica.id, None)
                    del self.replicas[replica.id]
                case ChangeDeployment():
                    raise AssertionError("no rollout is under way")

    def launch(self, replica: Replica) -> None:
        """Start a process on the replica's node; one of a node that was lost is void by now."""
        assert replica.node_id, "nothing starts without a place"
        node = self.nodes[replica.node_id]
        assert node.state is not NodeState.LOST
        self.processes[replica.id] = (replica.node_id, False)  # on a dead one it stays an order
        self.replicas[replica.id] = msgspec.structs.replace(
            replica,
            state=ReplicaState.LOADING,
            state_time=self.now_s,
            launch_time=self.now_s,
            attempts=replica.attempts + 1,
            retry_time=None,
        )

    def load(self) -> None:
        """Every process of a live machine has loaded."""
        self.processes = {
            name: (node, loaded or node not in self.dead_since_s)
            for name, (node, loaded) in self.processes.items()
        }

    def check(self) -> None:
        """What must hold at every moment."""
        users = Counter(
            (replica.node_id, device)
            for replica in self.replicas.values()
            for device in replica.device_ids
        )
        assert not users or max(users.values()) == 1, users
        for name, (node_id, _) in self.processes.items():
            replica = self.replicas[name]
            alive_there = replica.node_id == node_id
            assert alive_there or self.nodes[node_id].state is NodeState.LOST

    def active(self, owner: str) -> list[Replica]:
        return [
            replica
            for replica in self.replicas.values()
            if replica.parent_id == owner and replica.state is ReplicaState.ACTIVE
        ]

    def settle(self) -> None:
        """Time passes and nothing happens any more, until all serve."""
        for _ in range(steps_to_settle_max):
            self.load()
            self.step()
            counts = {name: len(self.active(name)) for name in self.deployments}
            if counts == {"low": 3, "high": 2} and len(self.replicas) == 5:
                return
        raise AssertionError(f"not settled: {self.replicas}")


events = st.lists(
    st.tuples(
        st.sampled_from(("pass", "load", "die", "return", "drain", "cordon", "open", "crash")),
        st.integers(0, node_count - 1),
    ),
    max_size=25,
)


def happen(fleet: Fleet, event: str, number: int) -> None:
    name = f"nod_{number}"
    node = fleet.nodes[name]
    match event:
        case "pass":
            for _ in range(10 * number + 1):
                fleet.step()
        case "load":
            fleet.load()
        case "die":
            fleet.dead_since_s.setdefault(name, fleet.now_s)
        case "return" if name in fleet.dead_since_s:
            back(fleet, [name])
        case "drain":
            fleet.nodes[name] = msgspec.structs.replace(node, is_draining=True)
        case "cordon":
            fleet.nodes[name] = msgspec.structs.replace(node, is_cordoned=True)
        case "open":
            fleet.nodes[name] = msgspec.structs.replace(node, is_draining=False, is_cordoned=False)
        case "crash" if fleet.processes:
            names = sorted(fleet.processes)
            del fleet.processes[names[number % len(names)]]
    fleet.step()


def back(fleet: Fleet, names: Sequence[str]) -> None:
    """Machines boot again, with nothing running."""
    for name in names:
        del fleet.dead_since_s[name]
        for replica in [r for r, (node, _) in fleet.processes.items() if node == name]:
            del fleet.processes[replica]


@given(events)
@settings(max_examples=40, deadline=None)
def test_replicas_settle_whatever_happened_to_nodes(happened: list[tuple[str, int]]) -> None:
    fleet = Fleet()
    for event, number in happened:
        happen(fleet, event, number)
    back(fleet, list(fleet.dead_since_s))
    for name, node in fleet.nodes.items():
        fleet.nodes[name] = msgspec.structs.replace(node, is_draining=False, is_cordoned=False)
    fleet.settle()


def test_a_lost_node_and_a_drained_one_are_empty_once_all_serves() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.dead_since_s["nod_0"] = fleet.now_s
    for _ in range(40):
        fleet.load()
        fleet.step()
    assert fleet.nodes["nod_0"].state is NodeState.LOST
    fleet.settle()
    assert all(replica.node_id != "nod_0" for replica in fleet.replicas.values())
    fleet.nodes["nod_1"] = msgspec.structs.replace(fleet.nodes["nod_1"], is_draining=True)
    for _ in range(10):
        assert len(fleet.active("low")) + len(fleet.active("high")) >= 4
        fleet.load()
        fleet.step()


def test_two_of_four_that_vanish_together_are_not_given_up() -> None:
    fleet = Fleet()
    fleet.settle()
    before = {replica.id: replica.node_id for replica in fleet.replicas.values()}
    fleet.dead_since_s |= {"nod_0": fleet.now_s, "nod_1": fleet.now_s}
    for _ in range(120):
        fleet.step()
    assert {replica.id: replica.node_id for replica in fleet.replicas.values()} == before
