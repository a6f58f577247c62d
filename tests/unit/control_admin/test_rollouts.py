"""Changes of what replicas look like are generations; rollouts can be seen, paused and undone."""

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.control.admin import create_admin_app
from headrace.control.gateway_poll import GatewayPoll
from headrace.control.insight import Insight
from headrace.control.scaler import Scaler
from headrace.control.traffic import TrafficBook
from headrace.http.client import WholeAnswer
from headrace.sim.clock import ManualClock
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model
from headrace.spec.rollout import RolloutVerdict
from headrace.storage import Database

token = "another-admin-token-of-30-chars"


@pytest.fixture
def deployment(admin: TestClient, database: Database) -> Deployment:
    admin.post("/models", json={"name": "small", "source": "one.gguf"})
    admin.post("/versions", json={"model": "small", "source": "two.gguf"})
    answer = admin.post("/deployments", json={"model": "small", "replicas": 2})
    return database.store.get(Deployment, answer.json()["id"])


def stored(database: Database, deployment: Deployment) -> Deployment:
    return database.store.get(Deployment, deployment.id)


def test_another_version_is_a_generation_and_takes_the_traffic_along(
    admin: TestClient, database: Database, deployment: Deployment
) -> None:
    before = deployment.model_version_id
    answer = admin.patch("/deployments/small", json={"version": "v2"})
    assert answer.json()["rollout_state"] == "progressing"
    changed = stored(database, deployment)
    assert changed.generation == 2
    targets = database.store.get(Model, deployment.parent_id).targets
    assert [target.model_version_id for target in targets] == [changed.model_version_id]
    assert admin.post("/rollouts/small", json={"action": "undo"}).status_code == 200
    back = stored(database, deployment)
    assert (back.generation, back.model_version_id) == (1, before)
    targets = database.store.get(Model, deployment.parent_id).targets
    assert [target.model_version_id for target in targets] == [before]


def test_the_same_look_is_no_generation(
    admin: TestClient, database: Database, deployment: Deployment
) -> None:
    admin.patch("/deployments/small", json={"version": "v1", "engine_arguments": []})
    assert stored(database, deployment).generation == 1


def test_a_rollout_is_paused_and_goes_on(
    admin: TestClient, database: Database, deployment: Deployment
) -> None:
    assert admin.post("/rollouts/small", json={"action": "pause"}).status_code == 409
    admin.patch("/deployments/small", json={"threads": 3})
    assert admin.post("/rollouts/small", json={"action": "pause"}).json()["state"] == "paused"
    assert admin.get("/rollouts/small").json()["state"] == "paused"
    assert admin.post("/rollouts/small", json={"action": "resume"}).json()["state"] == "progressing"


def test_a_deployment_tells_what_was_taken_back_until_something_newer_comes(
    admin: TestClient, database: Database, deployment: Deployment
) -> None:
    assert admin.get("/deployments/small").json()["rolled_back"] is None
    verdict = RolloutVerdict(generation=2, succeeded=False, reason="it did not start", time=1.0)
    database.store.update(msgspec.structs.replace(stored(database, deployment), verdict=verdict))
    told = admin.get("/deployments/small").json()["rolled_back"]
    assert told == "generation 2: it did not start"
    admin.patch("/deployments/small", json={"version": "v2"})
    assert admin.get("/deployments/small").json()["rolled_back"] is None


def test_nothing_before_the_first_generation(admin: TestClient, deployment: Deployment) -> None:
    answer = admin.post("/rollouts/small", json={"action": "undo"})
    assert answer.status_code == 409
    assert "no generation before" in answer.json()["error"]["message"]


def test_policies_are_checked_and_shown(
    admin: TestClient, database: Database, deployment: Deployment
) -> None:
    wrong = admin.patch("/deployments/small", json={"rollout": {"strategy": "sideways"}})
    assert wrong.status_code == 400
    assert "strategy" in wrong.json()["error"]["message"]
    steps = {"strategy": "canary", "steps": [{"weight": 10, "pause_s": 5}]}
    shown = admin.patch("/deployments/small", json={"rollout": steps}).json()
    assert shown["rollout"]["steps"] == [{"weight": 10, "pause_s": 5.0}]
    bounds = {"min": 3, "max": 5}
    scaled = admin.patch("/deployments/small", json={"autoscaling": bounds}).json()
    assert (scaled["replicas"], scaled["autoscaling"]["max"]) == (3, 5)
    crossed = admin.patch("/deployments/small", json={"autoscaling": {"min": 3, "max": 1}})
    assert crossed.status_code == 400
    fixed = admin.patch("/deployments/small", json={"autoscaling": None}).json()
    assert fixed["autoscaling"] is None
    assert msgspec.json.encode(stored(database, deployment))


def test_why_is_not_known_without_gateways(admin: TestClient, deployment: Deployment) -> None:
    assert admin.get("/explain/route/req_1").status_code == 503
    assert admin.get("/explain/scaling/small").status_code == 404
    admin.patch("/deployments/small", json={"autoscaling": {"min": 1, "max": 2}})
    assert admin.get("/explain/scaling/small").status_code == 503


def test_the_last_look_at_a_deployment_that_scales_is_told(
    database: Database, clock: ManualClock, admin: TestClient, deployment: Deployment
) -> None:
    admin.patch("/deployments/small", json={"autoscaling": {"min": 1, "max": 3}})
    scaler = Scaler(database.store, database.learnt_loads, TrafficBook(), clock)
    for _ in range(2):
        clock.advance(2.0)
        scaler.look()
    insight = Insight(
        GatewayPoll(NoClient(), (), pepper=b"p", book=TrafficBook(), clock=clock), scaler
    )
    app = create_admin_app(database, token, pepper=b"p" * 32, clock=clock, insight=insight)
    client = TestClient(
        app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {token}"},
        raise_server_exceptions=False,
    )
    told = client.get("/explain/scaling/small").json()
    assert (told["deployment"], told["granted"], told["before"]) == ("small", 2, 2)
    assert told["proposal"]["needs"] == {}
    assert "not down before" in told["proposal"]["reason"]
    assert client.get("/explain/route/req_1").status_code == 503


class NoClient:
    """A client that nothing should use: there are no gateways."""

    async def fetch(self, *arguments: object, **options: object) -> WholeAnswer:
        raise AssertionError("no gateway is known")
