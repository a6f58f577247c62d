"""Places on a few small clusters: topology, filters, gangs, preemption, the queue, explanations."""

from typing import Any

from headrace.control.placement.cluster import Assignment, Device, Node, Option, Request
from headrace.control.placement.explain import explain
from headrace.control.placement.schedule import schedule

gib = 1 << 30


def gpu_node(name: str, islands: str = "aaaabbbb", *, memory_gib: int = 80, **fields: Any) -> Node:
    """A node with a device for each letter; devices of one letter are joined by fast links."""
    half = len(islands) // 2
    devices = tuple(
        Device(f"gpu{i}", "H100", memory_gib * gib, numa=i // max(1, half), island=island.strip())
        for i, island in enumerate(islands)
    )
    return Node(name, devices, **fields)


def request(
    name: str, count: int = 1, *, devices: int = 1, memory_gib: int = 40, **fields: Any
) -> Request:
    """`count` replicas of so many devices each."""
    replicas = tuple(f"{name}-{i}" for i in range(count))
    return Request(name, replicas, (Option(devices, memory_gib * gib),), **fields)


def test_devices_that_share_layers_are_of_one_island() -> None:
    taken = [Assignment("x", "x", "n", ("gpu0",), gib), Assignment("y", "y", "n", ("gpu1",), gib)]
    placed = schedule([gpu_node("n")], taken, [request("m", devices=4)]).assignments
    assert placed[0].device_ids == ("gpu4", "gpu5", "gpu6", "gpu7")


def test_without_fast_links_devices_are_of_one_numa_node() -> None:
    taken = [Assignment("x", "x", "n", ("gpu1",), gib)]
    placed = schedule([gpu_node("n", "    ")], taken, [request("m", devices=2)]).assignments
    assert placed[0].device_ids == ("gpu2", "gpu3")


def test_small_replicas_fill_broken_islands_and_leave_whole_ones() -> None:
    taken = [Assignment("x", "x", "n", ("gpu0",), gib)]
    placed = schedule([gpu_node("n")], taken, [request("m", 3)]).assignments
    assert {d for a in placed for d in a.device_ids} == {"gpu1", "gpu2", "gpu3"}


def test_small_replicas_fill_a_node_before_they_open_another() -> None:
    taken = [Assignment("x", "x", "b", ("gpu0",), gib)]
    placed = schedule([gpu_node("a"), gpu_node("b")], taken, [request("m", 3)]).assignments
    assert {a.node_id for a in placed} == {"b"}


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    gang = request("gang", 3, devices=4, is_gang=True)
    outcome = schedule([gpu_node("n")], [], [gang, request("single", 2)])
    assert {a.request_name for a in outcome.assignments} == {"single"}
    assert outcome.queued[0].replicas == ("gang-0", "gang-1", "gang-2")


def test_replicas_without_a_gang_start_as_far_as_they_fit() -> None:
    outcome = schedule([gpu_node("n")], [], [request("m", 3, devices=4)])
    assert [a.replica for a in outcome.assignments] == ["m-0", "m-1"]
    assert outcome.queued[0].replicas == ("m-2",)


def test_the_higher_priority_goes_first() -> None:
    outcome = schedule(
        [gpu_node("n")], [], [request("low", devices=8), request("high", devices=8, priority=1)]
    )
    assert [a.request_name for a in outcome.assignments] == ["high"]
    assert [q.request_name for q in outcome.queued] == ["low"]


def test_preemption_ends_as_few_of_the_lowest_as_needed() -> None:
    running = [
        Assignment("low", "low", "n", ("gpu0", "gpu1", "gpu2", "gpu3"), gib, priority=1),
        Assignment("mid", "mid", "n", ("gpu4", "gpu5", "gpu6", "gpu7"), gib, priority=2),
    ]
    outcome = schedule([gpu_node("n")], running, [request("high", devices=4, priority=3)])
    assert [a.replica for a in outcome.preempted] == ["low"]
    assert outcome.assignments[0].device_ids == ("gpu0", "gpu1", "gpu2", "gpu3")


def test_equal_priority_is_never_ended() -> None:
    running = [Assignment("x", "x", "n", tuple(f"gpu{i}" for i in range(8)), gib, priority=3)]
    outcome = schedule([gpu_node("n")], running, [request("m", priority=3)])
    assert not outcome.preempted
    assert outcome.queued[0].request_name == "m"


def test_a_gang_is_ended_whole() -> None:
    running = [
        Assignment(f"g-{i}", "g", n, tuple(f"gpu{d}" for d in range(8)), gib, is_gang=True)
        for i, n in enumerate("ab")
    ]
    outcome = schedule([gpu_node("a"), gpu_node("b")], running, [request("m", priority=1)])
    assert [a.replica for a in outcome.preempted] == ["g-0", "g-1"]


def test_replicas_that_are_to_be_apart_are_on_different_nodes() -> None:
    nodes = [gpu_node("a"), gpu_node("b")]
    outcome = schedule(nodes, [], [request("m", 3, apart_from=frozenset({"m"}))])
    assert sorted(a.node_id for a in outcome.assignments) == ["a", "b"]
    assert outcome.queued[0].replicas == ("m-2",)


def test_processors_are_shared_within_their_memory() -> None:
    node = Node("n", (Device("cpu0", "CPU", 100 * gib, is_shared=True),))
    outcome = schedule([node], [], [request("m", 3)])
    assert len(outcome.assignments) == 2


def test_a_node_with_the_weights_is_preferred() -> None:
    wanted = request("m", warm_nodes=frozenset({"b"}))
    assert schedule([gpu_node("a"), gpu_node("b")], [], [wanted]).assignments[0].node_id == "b"


def test_every_rejection_has_its_reason() -> None:
    nodes = [
        gpu_node("closed", closed_reason="it is cordoned"),
        gpu_node("elsewhere", labels={"zone": "b"}),
        gpu_node("full", "ab", labels={"zone": "a"}),
        gpu_node("good", labels={"zone": "a"}),
        gpu_node("little", memory_gib=24, labels={"zone": "a"}),
        gpu_node("shared", labels={"zone": "a"}),
        gpu_node("special", labels={"zone": "a"}, taints=frozenset({"lab"})),
        Node("cpu", (), labels={"zone": "a"}),
    ]
    running = [
        Assignment("x", "x", "full", ("gpu0",), gib),
        Assignment("y", "enemy", "shared", ("gpu0",), gib),
    ]
    wanted = request("m", devices=2, node_labels={"zone": "a"}, apart_from=frozenset({"enemy"}))
    verdicts = explain(nodes, running, wanted)
    assert verdicts[0].node_id == "good"
    assert verdicts[0].score == sum(verdicts[0].terms.values()) > 4
    assert {v.node_id: v.reason for v in verdicts[1:]} == {
        "closed": "it is cordoned",
        "cpu": "it has no device",
        "elsewhere": "the label zone=a is wanted; it has b",
        "full": "2 of one type with 40.0 GiB wanted; 1 of 2 free",
        "little": "2 of one type with 40.0 GiB wanted; it has 0",
        "shared": "a replica of enemy runs there, and they are to be apart",
        "special": "it has the taint lab, which is not tolerated",
    }


def test_what_runs_apart_from_others_keeps_them_away() -> None:
    running = [Assignment("y", "shy", "a", ("gpu0",), gib, apart_from=frozenset({"m"}))]
    outcome = schedule([gpu_node("a"), gpu_node("b")], running, [request("m")])
    assert outcome.assignments[0].node_id == "b"


def test_replicas_on_processors_spread_over_the_nodes() -> None:
    nodes = [
        Node(name, (Device("cpu0", "CPU", 100 * gib, is_shared=True),), cpu_count=8)
        for name in "ab"
    ]
    options = (Option(1, gib),)
    outcome = schedule(nodes, [], [Request("m", ("m-0", "m-1"), options, cpu_count=8)])
    assert sorted(a.node_id for a in outcome.assignments) == ["a", "b"]


def test_a_node_with_too_few_processors_says_so() -> None:
    node = Node("a", (Device("cpu0", "CPU", 100 * gib, is_shared=True),), cpu_count=8)
    wanted = Request("m", ("m-0",), (Option(1, gib),), cpu_count=9)
    assert explain([node], [], wanted)[0].reason == "9 processors wanted; it has 8"
