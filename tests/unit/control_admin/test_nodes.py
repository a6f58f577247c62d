"""Nodes by the admin API: tokens, closing, removing, and why replicas are where they are."""

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.control.admin import create_admin_app
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.node_loop import NodeLoop
from headrace.sim.clock import ManualClock
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion
from headrace.spec.nodes import Inventory, Node, NodeDevice, NodeReport, NodeState
from headrace.spec.token_format import node_tokens
from headrace.storage import Database

pepper = b"p" * 32
inventory = Inventory(
    devices=(NodeDevice(id="cpu0", device_type="CPU", memory_bytes=1 << 30, is_shared=True),),
    cpu_count=2.0,
)


def add(admin: TestClient, name: str = "gpu1") -> dict[str, str]:
    answer = admin.post("/nodes", json={"name": name, "region": "eu", "labels": {"disk": "ssd"}})
    assert answer.status_code == 201, answer.text
    added: dict[str, str] = answer.json()
    return added


def test_a_nodes_token_is_shown_once_and_kept_as_a_digest(
    admin: TestClient, database: Database
) -> None:
    made = add(admin)
    parsed = node_tokens.parse(made["token"])
    assert parsed is not None
    kept = database.store.get(Node, parsed.owner_id)
    assert node_tokens.matches(pepper, parsed.secret, kept.secret_hmac)
    for path in ("/nodes", f"/nodes/{made['name']}", "/audit?limit=50"):
        assert parsed.secret not in admin.get(path).text
    again = admin.post(f"/nodes/{made['name']}/token").json()["token"]
    renewed = node_tokens.parse(again)
    assert renewed is not None
    kept = database.store.get(Node, parsed.owner_id)
    assert not node_tokens.matches(pepper, parsed.secret, kept.secret_hmac)
    assert node_tokens.matches(pepper, renewed.secret, kept.secret_hmac)


def test_a_node_is_closed_and_opened(admin: TestClient) -> None:
    add(admin)
    drained = admin.patch("/nodes/gpu1", json={"draining": True, "cordoned": True}).json()
    assert (drained["draining"], drained["cordoned"]) == (True, True)
    opened = admin.patch("/nodes/gpu1", json={"draining": False, "cordoned": False}).json()
    assert (opened["draining"], opened["cordoned"]) == (False, False)
    assert admin.patch("/nodes/gpu1", json={"quarantined": True}).status_code == 400
    labels = admin.patch("/nodes/gpu1", json={"labels": {"rack": "7"}}).json()["labels"]
    assert labels == {"region": "eu", "node": "gpu1", "rack": "7"}


@pytest.mark.parametrize(
    "body",
    [
        {"name": "local"},
        {"name": "a b"},
        {"name": "a", "labels": {"a b": "c"}},
        {"name": "a", "region": "x/y"},
        {"name": "a", "secret_hmac": "00"},
    ],
)
def test_a_node_that_can_not_be_is_refused(admin: TestClient, body: dict[str, object]) -> None:
    assert admin.post("/nodes", json=body).status_code == 400


def test_a_node_with_replicas_is_removed_only_by_force(
    admin: TestClient, database: Database
) -> None:
    made = add(admin)
    database.store.create(
        Replica(id="rep_1", name="r", parent_id="dep_1", create_time=0, node_id=made["id"])
    )
    refused = admin.delete("/nodes/gpu1")
    assert refused.status_code == 409
    assert "drain it first" in refused.text
    assert admin.delete("/nodes/gpu1?force=true").status_code == 204
    assert admin.get("/nodes").json()["items"] == []


@pytest.fixture
def loop(database: Database, clock: ManualClock) -> NodeLoop:
    book = NodeBook(clock.monotonic_s())
    return NodeLoop(store=database.store, book=book, clock=clock, leads=lambda: True, local=None)


@pytest.fixture
def placed(database: Database, clock: ManualClock, loop: NodeLoop) -> TestClient:
    """An admin API with nodes: two that report, and a deployment that wants each replica apart."""
    store = database.store
    store.create(Model(id="mod_1", name="small", create_time=0))
    store.create(ModelVersion(id="ver_1", name="v1", parent_id="mod_1", create_time=0, source="x"))
    app = create_admin_app(database, "t" * 30, pepper=pepper, clock=clock, node_loop=loop)
    client = TestClient(
        app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {'t' * 30}"},
    )
    for name in ("a", "b"):
        node = store.get(Node, add(client, name)["id"])
        store.update(msgspec.structs.replace(node, inventory=inventory))
        loop.book.hear(node.id, NodeReport(life="x", sequence=1), clock.monotonic_s())
    wanted = {"model": "small", "version": "v1", "placement": {"is_spread": True}}
    answer = client.post("/deployments", json=wanted)
    assert answer.status_code == 201, answer.text
    owner = store.list(Deployment)[0].id
    for number in range(3):
        store.create(Replica(id=f"rep_{number}", name=f"r{number}", parent_id=owner, create_time=0))
    for _ in range(2):
        loop.look()
    return client


def test_placement_is_explained_for_each_replica_and_node(placed: TestClient) -> None:
    told = placed.get("/explain/placement/small").json()
    details = {place["node"]: place["detail"] for place in told["replicas"]}
    assert set(details) == {"a", "b", ""}
    assert details[""].startswith("queued: ")
    assert "a: a replica of the same deployment runs there" in details[""]
    assert {node["node"] for node in told["nodes"]} == {"a", "b"}
    assert told["frozen_reason"] is None


def test_a_change_of_needs_is_a_generation_and_a_change_of_placement_is_none(
    placed: TestClient, database: Database
) -> None:
    def patch(body: dict[str, object]) -> Deployment:
        answer = placed.patch("/deployments/small", json=body)
        assert answer.status_code == 200, answer.text
        return database.store.list(Deployment)[0]

    assert patch({"placement": {"priority": 7}}).generation == 1
    changed = patch({"resources": {"cpu_count": 2, "niceness": 5}})
    assert (changed.generation, changed.placement.is_spread) == (2, True)
    again = patch({"resources": {"cpu_count": None}})
    assert (again.resources.cpu_count, again.resources.niceness) == (None, 5)
    refused = placed.patch("/deployments/small", json={"resources": {"gpus": 2}})
    assert refused.status_code == 400
    assert "gpus" in refused.text


def test_nodes_that_vanish_together_are_told_as_frozen(
    placed: TestClient, database: Database, clock: ManualClock, loop: NodeLoop
) -> None:
    clock.advance(100.0)
    loop.look()
    told = placed.get("/nodes").json()
    assert "2 of 2 nodes fell silent together" in told["frozen_reason"]
    assert [node["state"] for node in told["items"]] == ["ready", "ready"]
    assert [r.state for r in database.store.list(Replica)] == [ReplicaState.CREATING] * 3
    assert all(node.state is NodeState.READY for node in database.store.list(Node))


def test_who_comes_back_later_than_the_first_has_its_time_anew(
    placed: TestClient, database: Database, clock: ManualClock, loop: NodeLoop
) -> None:
    first, second = database.store.list(Node)
    clock.advance(100.0)
    loop.look()
    assert loop.frozen_reason
    for seconds, state in ((1.0, NodeState.READY), (29.0, NodeState.READY), (3.0, NodeState.LOST)):
        clock.advance(seconds)
        loop.book.hear(first.id, NodeReport(life="x", sequence=2), clock.monotonic_s())
        loop.look()
        loop.look()
        assert not loop.frozen_reason
        assert database.store.get(Node, second.id).state is state
