"""Models, deployments and replicas through the API: desired against observed, and no secrets."""

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.base.ids import new_id
from headrace.sim.clock import ManualClock
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.storage import Database

canary = "canary-engine-key-5f1d"


@pytest.fixture
def deployment(admin: TestClient, database: Database) -> Deployment:
    admin.post("/models", json={"name": "small", "source": "small.gguf"})
    answer = admin.post("/deployments", json={"model": "small", "replicas": 2})
    assert answer.status_code == 201
    return database.store.get(Deployment, answer.json()["id"])


def add_replica(
    database: Database, clock: ManualClock, deployment: Deployment, name: str, **fields: object
) -> Replica:
    replica = Replica(
        id=new_id("rep", clock),
        name=name,
        parent_id=deployment.id,
        create_time=clock.wall_s(),
        address="http://127.0.0.1:40001",
        engine_key=canary,
        model_name="small",
    )
    return database.store.create(msgspec.structs.replace(replica, **fields))


def test_a_deployment_without_replicas_says_why_it_is_not_ready(
    admin: TestClient, deployment: Deployment
) -> None:
    shown = admin.get("/deployments/small").json()
    assert (shown["replicas"], shown["ready_replicas"], shown["ready"]) == (2, 0, False)
    assert shown["reasons"] == [
        "2 not created yet; the control plane creates them in its next round"
    ]


def test_observed_replicas_count_when_active_and_current(
    admin: TestClient, database: Database, clock: ManualClock, deployment: Deployment
) -> None:
    add_replica(database, clock, deployment, "a", state=ReplicaState.ACTIVE)
    add_replica(database, clock, deployment, "b", state=ReplicaState.LOADING, detail="mapping 40%")
    shown = admin.get("/deployments/small").json()
    assert shown["ready_replicas"] == 1
    assert shown["reasons"] == ["b is loading: mapping 40%"]


def test_replicas_of_an_old_generation_are_not_ready(
    admin: TestClient, database: Database, clock: ManualClock, deployment: Deployment
) -> None:
    for name in ("a", "b"):
        add_replica(database, clock, deployment, name, state=ReplicaState.ACTIVE, generation=0)
    assert admin.get("/deployments/small").json()["ready"] is False


def test_a_draining_replica_is_no_reason_and_does_not_count(
    admin: TestClient, database: Database, clock: ManualClock, deployment: Deployment
) -> None:
    for name in ("a", "b"):
        add_replica(database, clock, deployment, name, state=ReplicaState.DRAINING)
    assert admin.get("/deployments/small").json()["reasons"] == [
        "2 not created yet; the control plane creates them in its next round"
    ]


def test_an_unknown_engine_is_refused(admin: TestClient, deployment: Deployment) -> None:
    answer = admin.post("/deployments", json={"model": "small", "engine": "warp"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "engine"


def test_engine_keys_never_leave(
    admin: TestClient, database: Database, clock: ManualClock, deployment: Deployment
) -> None:
    add_replica(database, clock, deployment, "a", state=ReplicaState.ACTIVE)
    for path in ("/replicas", "/deployments", "/deployments/small", "/models"):
        answer = admin.get(path)
        assert answer.status_code == 200
        assert canary not in answer.text
    assert admin.get("/replicas").json()["items"][0]["deployment"] == "small"


def test_scaling_keeps_the_generation(admin: TestClient, deployment: Deployment) -> None:
    changed = admin.patch("/deployments/small", json={"replicas": 0})
    assert changed.status_code == 200
    assert changed.json()["replicas"] == 0
    assert changed.json()["ready"] is True
    assert changed.json()["generation"] == deployment.generation


@pytest.mark.parametrize("replicas", [-1, 1001, "two", None, 1.5])
def test_a_wrong_count_is_refused(
    admin: TestClient, deployment: Deployment, replicas: object
) -> None:
    answer = admin.patch("/deployments/small", json={"replicas": replicas})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "replicas"


def test_a_deleted_deployment_is_gone(admin: TestClient, deployment: Deployment) -> None:
    assert admin.delete("/deployments/small").status_code == 204
    assert admin.get("/deployments/small").status_code == 404
    assert admin.delete("/deployments/small").status_code == 404


def test_a_second_deployment_of_a_model_gets_its_own_name(
    admin: TestClient, deployment: Deployment
) -> None:
    assert admin.post("/deployments", json={"model": "small"}).json()["name"] == "small-2"


def test_a_new_version_takes_the_traffic_when_asked(admin: TestClient) -> None:
    admin.post("/models", json={"name": "org/big:it", "source": "hf://org/big/a.gguf"})
    body = {"model": "org/big:it", "source": "hf://org/big/b.gguf", "sha256": "ab" * 32}
    quiet = admin.post("/versions", json=body).json()
    loud = admin.post("/versions", json={**body, "activate": True}).json()
    assert (quiet["name"], quiet["weight"]) == ("v2", 0)
    assert (loud["name"], loud["weight"]) == ("v3", 1)
    weights = {v["name"]: v["weight"] for v in admin.get("/models/org/big:it").json()["versions"]}
    assert weights == {"v1": 0, "v2": 0, "v3": 1}
    deployed = admin.post("/deployments", json={"model": "org/big:it", "version": "v2"}).json()
    assert deployed["version"] == "v2"


def test_a_version_of_another_model_is_refused(admin: TestClient, deployment: Deployment) -> None:
    other = admin.post("/models", json={"name": "other", "source": "o.gguf"}).json()
    answer = admin.post(
        "/deployments", json={"model": "small", "version": other["versions"][0]["id"]}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "version"


@pytest.mark.parametrize("digest", ["", "abc", "AB" * 32, "../" * 22])
def test_a_digest_has_the_shape_of_one(admin: TestClient, digest: str) -> None:
    answer = admin.post("/models", json={"name": "m", "source": "m.gguf", "sha256": digest})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "sha256"


def test_hedging_stays_until_it_is_changed_and_is_no_new_generation(
    admin: TestClient, deployment: Deployment
) -> None:
    policy = {"after_s": 0.25, "first_output_quantile": 0.9}
    changed = admin.patch("/deployments/small", json={"hedging": policy}).json()
    assert (changed["hedging"], changed["generation"]) == (policy, 1)
    assert admin.patch("/deployments/small", json={"replicas": 3}).json()["hedging"] == policy
    assert admin.patch("/deployments/small", json={"hedging": None}).json()["hedging"] is None


@pytest.mark.parametrize("wrong", [{"after_s": -1}, {"first_output_quantile": 1}, {"after": 1}])
def test_hedging_that_makes_no_sense_is_refused(
    admin: TestClient, deployment: Deployment, wrong: dict[str, object]
) -> None:
    answer = admin.patch("/deployments/small", json={"hedging": wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "hedging"


def test_replicas_for_prompts_take_the_place_of_a_number_and_are_a_new_generation(
    admin: TestClient, deployment: Deployment
) -> None:
    policy = {"prefill": 1, "decode": 2, "threshold_tokens": 700}
    changed = admin.patch("/deployments/small", json={"disaggregation": policy}).json()
    assert (changed["disaggregation"], changed["replicas"]) == (policy, 3)
    assert changed["generation"] == 2
    moved = admin.patch("/deployments/small", json={"disaggregation": {"prefill": 2}}).json()
    assert (moved["replicas"], moved["generation"]) == (3, 2)
    assert admin.patch("/deployments/small", json={"replicas": 0}).json()["replicas"] == 0
    refused = admin.patch("/deployments/small", json={"replicas": 4})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "replicas")
    ended = admin.patch("/deployments/small", json={"disaggregation": None}).json()
    assert ended["disaggregation"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"disaggregation": {"prefill": 0}},
        {"disaggregation": {}, "autoscaling": {"min": 1, "max": 3}},
        {"disaggregation": {}, "engine": "llama_cpp"},
        {"disaggregation": {}, "engine": "sglang", "rollout": {"strategy": "rolling"}},
    ],
)
def test_a_split_that_cannot_be_is_refused(
    admin: TestClient, deployment: Deployment, change: dict[str, object]
) -> None:
    answer = admin.patch("/deployments/small", json=change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "disaggregation"


def test_halves_of_an_engine_keep_their_parts(admin: TestClient, deployment: Deployment) -> None:
    rollout = {"strategy": "blue-green"}
    change = {"disaggregation": {"decode": 2}, "engine": "sglang", "rollout": rollout}
    assert admin.patch("/deployments/small", json=change).status_code == 200
    other = {"disaggregation": {"prefill": 2, "decode": 1}}
    refused = admin.patch("/deployments/small", json=other)
    assert (refused.status_code, "keeps its part" in refused.text) == (400, True)
    threshold = {"disaggregation": {"decode": 2, "threshold_tokens": 5}}
    assert admin.patch("/deployments/small", json=threshold).status_code == 200
    assert admin.patch("/deployments/small", json={"disaggregation": None}).status_code == 200
