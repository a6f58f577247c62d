"""Places of replicas, by what is wanted of nodes and what happens to them."""

import msgspec

from headrace.control.nodes.placing import PlacingView, explain_deployment, plan
from headrace.spec.deployments import Deployment, Leaving, Replica, ReplicaState
from headrace.spec.nodes import Inventory, Node, NodeDevice, NodeState
from headrace.spec.resources import PlacementPolicy, ReplicaResources

gib = 1 << 30


def node(name: str, gpus: int = 0, **changes: object) -> Node:
    accelerators = tuple(
        NodeDevice(id=f"GPU-{name}{i}", device_type="H100", memory_bytes=80 * gib, island="x")
        for i in range(gpus)
    )
    socket = NodeDevice(id="cpu0", device_type="CPU", memory_bytes=64 * gib, is_shared=True)
    base = Node(
        id=f"nod_{name}",
        name=name,
        create_time=0,
        secret_hmac=b"x",
        region=f"region-{name}",
        state=NodeState.READY,
        inventory=Inventory(devices=(*accelerators, socket), cpu_count=8.0, memory_bytes=64 * gib),
    )
    return msgspec.structs.replace(base, **changes)


def deployment(name: str = "d", **changes: object) -> Deployment:
    base = Deployment(
        id=f"dep_{name}", name=name, parent_id="mod", create_time=0, model_version_id="ver"
    )
    return msgspec.structs.replace(base, **changes)


def replica(name: str, of: Deployment, **changes: object) -> Replica:
    base = Replica(id=f"rep_{name}", name=name, parent_id=of.id, create_time=0)
    return msgspec.structs.replace(base, **changes)


def settled(
    nodes: list[Node], deployments: list[Deployment], replicas: list[Replica], now_s: float = 0.0
) -> dict[str, Replica]:
    """What all replicas are once nothing changes any more; each step is written whole."""
    known = {each.name: each for each in replicas}
    for _ in range(10):
        view = PlacingView(now_s, nodes, deployments, list(known.values()))
        changed = plan(view)
        if not changed:
            return known
        known |= {each.name: each for each in changed}
    raise AssertionError("places never settle")


gpu = ReplicaResources(devices=2, device_memory_bytes=70 * gib)


def test_a_replica_gets_a_node_its_devices_and_its_region() -> None:
    wanted = deployment(resources=gpu)
    placed = settled([node("a"), node("b", 4)], [wanted], [replica("r", wanted)])["r"]
    assert (placed.node_id, placed.region) == ("nod_b", "region-b")
    assert len(placed.device_ids) == 2
    assert placed.device_memory_bytes == 70 * gib


def test_what_does_not_fit_waits_and_says_why_for_each_node() -> None:
    wanted = deployment(resources=gpu)
    nodes = [node("a"), node("b", 1), node("c", 8, is_cordoned=True)]
    waiting = settled(nodes, [wanted], [replica("r", wanted)])["r"]
    assert not waiting.node_id
    assert "a: it has no H100" in waiting.detail
    assert "b: 2 of one type with 70.0 GiB wanted; it has 1" in waiting.detail
    assert "c: it is cordoned" in waiting.detail


def test_replicas_spread_when_they_are_to() -> None:
    wanted = deployment(placement=PlacementPolicy(is_spread=True))
    replicas = [replica(f"r{i}", wanted) for i in range(3)]
    placed = settled([node("a"), node("b")], [wanted], replicas)
    assert sorted(each.node_id for each in placed.values()) == ["", "nod_a", "nod_b"]


def test_a_gang_waits_whole() -> None:
    wanted = deployment(resources=gpu, placement=PlacementPolicy(is_gang=True))
    replicas = [replica(f"r{i}", wanted) for i in range(3)]
    placed = settled([node("a", 4)], [wanted], replicas)
    assert all(not each.node_id for each in placed.values())
    assert "all or none" in placed["r0"].detail


def test_a_failed_replica_of_a_lost_node_moves_and_one_that_still_serves_there_stays() -> None:
    wanted = deployment()
    lost = node("a", state=NodeState.LOST)
    replicas = [
        replica("dead", wanted, node_id="nod_a", state=ReplicaState.FAILED, device_ids=("cpu0",)),
        replica("live", wanted, node_id="nod_a", state=ReplicaState.ACTIVE, device_ids=("cpu0",)),
    ]
    placed = settled([lost, node("b")], [wanted], replicas)
    assert placed["dead"].node_id == "nod_b"
    assert placed["live"].node_id == "nod_a"


def test_a_failed_replica_of_a_good_node_keeps_its_place() -> None:
    wanted = deployment()
    here = replica("r", wanted, node_id="nod_a", state=ReplicaState.FAILED, device_ids=("cpu0",))
    assert settled([node("a"), node("b")], [wanted], [here])["r"].node_id == "nod_a"


def test_a_drain_asks_what_serves_to_leave_and_takes_that_back() -> None:
    wanted = deployment()
    here = replica("r", wanted, node_id="nod_a", state=ReplicaState.ACTIVE, device_ids=("cpu0",))
    leaving = settled([node("a", is_draining=True), node("b")], [wanted], [here])["r"]
    assert leaving.leaving is Leaving.WHEN_REPLACED
    again = settled([node("a"), node("b")], [wanted], [leaving])["r"]
    assert again.leaving is Leaving.NOT


def test_quarantine_ends_by_itself() -> None:
    wanted = deployment()
    closed = node("a", quarantine_until=100.0, quarantine_reason="3 starts in a row failed there")
    waiting = settled([closed], [wanted], [replica("r", wanted)], now_s=99.0)["r"]
    assert "quarantine" in waiting.detail
    assert settled([closed], [wanted], [waiting], now_s=100.0)["r"].node_id == "nod_a"


def test_a_higher_priority_ends_a_lower_one_and_waits_until_it_has_left() -> None:
    low = deployment("low", resources=gpu)
    high = deployment("high", resources=gpu, placement=PlacementPolicy(priority=10))
    held = tuple(f"GPU-a{i}" for i in range(2))
    running = replica(
        "low-0",
        low,
        node_id="nod_a",
        state=ReplicaState.ACTIVE,
        device_ids=held,
        device_memory_bytes=70 * gib,
    )
    first = settled([node("a", 2)], [low, high], [running, replica("high-0", high)])
    assert first["low-0"].leaving is Leaving.AT_ONCE
    assert not first["high-0"].node_id
    assert first["high-0"].detail == "waits until low-0 has left"
    del first["low-0"]
    later = settled([node("a", 2)], [low, high], [*first.values(), replica("low-1", low)])
    assert later["high-0"].node_id == "nod_a"
    assert not later["low-1"].node_id


def test_what_ran_before_there_were_nodes_is_taken_over_where_it_runs() -> None:
    wanted = deployment()
    here = node("local", secret_hmac=b"", region="home")
    running = replica("r", wanted, state=ReplicaState.ACTIVE)
    assert settled([here, node("b")], [wanted], [running])["r"].region == "home"


def test_deployments_that_are_apart_are_told_by_name() -> None:
    shy = deployment("shy", placement=PlacementPolicy(apart_from=("loud",)))
    loud = deployment("loud")
    running = replica(
        "loud-0", loud, node_id="nod_a", state=ReplicaState.ACTIVE, device_ids=("cpu0",)
    )
    view = PlacingView(0.0, [node("a"), node("b")], [shy, loud], [running])
    reasons = {verdict.node_id: verdict.reason for verdict in explain_deployment(view, shy)}
    assert reasons == {
        "nod_a": "a replica of loud runs there, and they are to be apart",
        "nod_b": "",
    }


def test_a_replica_over_several_nodes_says_what_it_needs() -> None:
    wanted = deployment(resources=ReplicaResources(devices=8, nodes=2))
    waiting = settled([node("a", 8), node("b", 8)], [wanted], [replica("r", wanted)])["r"]
    assert waiting.detail == "a replica over several nodes needs the Kubernetes launcher"
