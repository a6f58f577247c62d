"""Who counts as lost: one node that falls silent, not many at once."""

import msgspec

from headrace.control.nodes.quarantine import QuarantineWatch
from headrace.control.nodes.standing import NodeTimes, judge
from headrace.spec.deployments import Replica, ReplicaState
from headrace.spec.nodes import Node, NodeState

times = NodeTimes(silent_after_s=10.0, lost_after_s=30.0)


def nodes(count: int, state: NodeState = NodeState.READY) -> list[Node]:
    return [
        Node(id=f"nod_{i}", name=f"n{i}", create_time=0, secret_hmac=b"x", state=state)
        for i in range(count)
    ]


def all_of(found: list[Node]) -> frozenset[str]:
    return frozenset(node.id for node in found)


def test_a_node_is_ready_once_it_reports() -> None:
    joining = nodes(1, NodeState.JOINING)
    assert judge(joining, {}, frozenset(), times).states == {}
    assert judge(joining, {"nod_0": 1.0}, all_of(joining), times).states == {
        "nod_0": NodeState.READY
    }


def test_one_of_many_that_falls_silent_is_first_silent_then_lost() -> None:
    fleet = nodes(10)
    silent = judge(fleet, {"nod_3": 11.0}, all_of(fleet), times)
    assert set(silent.silent) == {"nod_3"}
    assert silent.states == {}
    assert judge(fleet, {"nod_3": 31.0}, all_of(fleet), times).states == {"nod_3": NodeState.LOST}


def test_nobody_is_lost_when_more_than_the_share_fall_silent_together() -> None:
    fleet = nodes(10)
    standing = judge(fleet, {f"nod_{i}": 100.0 for i in range(4)}, all_of(fleet), times)
    assert standing.states == {}
    assert "4 of 10" in standing.frozen_reason
    three = judge(fleet, {f"nod_{i}": 100.0 for i in range(3)}, all_of(fleet), times)
    assert set(three.states.values()) == {NodeState.LOST}
    assert not three.frozen_reason


def test_the_first_to_be_late_waits_for_the_others_that_are_silent_already() -> None:
    fleet = nodes(10)
    silences = {"nod_0": 31.0, "nod_1": 25.0, "nod_2": 25.0, "nod_3": 25.0}
    assert judge(fleet, silences, all_of(fleet), times).frozen_reason


def test_nodes_given_up_one_by_one_do_not_freeze_the_rest() -> None:
    fleet = [*nodes(6, NodeState.LOST), *nodes(10)[6:]]
    silences = {node.id: 900.0 for node in fleet[:6]} | {"nod_7": 40.0}
    standing = judge(fleet, silences, all_of(fleet), times)
    assert standing.states == {"nod_7": NodeState.LOST}


def test_after_a_restart_of_the_control_plane_nodes_have_time_to_report() -> None:
    fleet = nodes(5)
    early = judge(fleet, {node.id: 5.0 for node in fleet}, frozenset(), times)
    assert early.states == {}
    assert not early.silent
    assert judge(fleet, {node.id: 60.0 for node in fleet}, frozenset(), times).frozen_reason


def test_a_lost_node_that_reports_again_is_ready() -> None:
    lost = nodes(1, NodeState.LOST)
    assert judge(lost, {"nod_0": 0.5}, all_of(lost), times).states == {"nod_0": NodeState.READY}


def replica(name: str, node: str, state: ReplicaState, **changes: object) -> Replica:
    base = Replica(
        id=f"rep_{name}",
        name=name,
        parent_id="dep_1",
        create_time=0,
        node_id=node,
        state=state,
        launch_time=1.0,
    )
    return msgspec.structs.replace(base, **changes)


def failing(node: str, owner: str = "dep_1") -> list[Replica]:
    return [
        replica(f"{owner}-{n}", node, ReplicaState.FAILED, launch_time=float(n), parent_id=owner)
        for n in range(3)
    ]


def test_a_node_where_what_serves_elsewhere_fails_is_a_suspect() -> None:
    good = replica("good", "nod_b", ReplicaState.ACTIVE, first_token_time=2.0)
    assert "nod_a" in QuarantineWatch().suspects([*failing("nod_a"), good])


def test_a_deployment_that_starts_nowhere_is_its_own_fault() -> None:
    assert QuarantineWatch().suspects(failing("nod_a")) == {}
    both = [*failing("nod_a"), *failing("nod_a", "dep_2")]
    assert "nod_a" in QuarantineWatch().suspects(both)


def test_the_same_failure_seen_twice_counts_once_and_a_success_begins_anew() -> None:
    watch = QuarantineWatch()
    once = [replica("r", "nod_a", ReplicaState.FAILED)]
    good = replica("good", "nod_b", ReplicaState.ACTIVE, first_token_time=2.0)
    for _ in range(5):
        assert watch.suspects([*once, good]) == {}
    here = replica("here", "nod_a", ReplicaState.ACTIVE, first_token_time=2.0)
    watch.suspects([here])
    assert watch.suspects([*failing("nod_a")[:2], good]) == {}
