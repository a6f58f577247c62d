"""Prometheus is led to every replica through the control plane, and strangers to none."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headrace.adapters.registry import all_adapters
from headrace.base.errors import Unavailable
from headrace.control.metrics_site import MetricsSite
from headrace.http.client import WholeAnswer
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.nodes import Node
from headrace.spec.platform_token import metrics_token, platform_token
from headrace.storage import Store

pepper = b"p" * 32
engine_text = b"headrace_engine_steps_total 7.0\n"


class Engines:
    """Engines by address; the one at port 2 is away, the one at port 3 refuses."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
    ) -> WholeAnswer:
        self.asked.append((url, headers))
        if ":2/" in url:
            raise Unavailable("away")
        status = 401 if ":3/" in url else 200
        is_open = "openmetrics" in headers["Accept"]
        return WholeAnswer(status, engine_text + (b"# EOF\n" if is_open else b""))


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def site(tmp_path: Path, engines: Engines) -> MetricsSite:
    store = open_sqlite_copy(tmp_path / "headrace.db").store
    store.create(
        Deployment(
            id="dep_1", name="chat", parent_id="mod_1", create_time=0.0, model_version_id="ver_1"
        )
    )
    store.create(Node(id="nod_1", name="gpu-1", create_time=0.0))
    states = {
        "1": ("headrace", ReplicaState.ACTIVE),
        "2": ("vllm", ReplicaState.DRAINING),
        "3": ("headrace", ReplicaState.LOADING),
        "4": ("headrace", ReplicaState.FAILED),
        "5": ("ollama", ReplicaState.ACTIVE),  # tells no metrics
    }
    for number, (engine, state) in states.items():
        replica = Replica(
            id=f"rep_{number}",
            name=f"chat-{number}",
            parent_id="dep_1",
            create_time=0.0,
            state=state,
            engine=engine,
            address=f"http://127.0.0.1:{number}",
            engine_key=f"key-{number}",
            node_id="nod_1",
        )
        store.create(replica)
    return MetricsSite(
        lambda: b"headrace_control_leads 1.0\n",
        store=store,
        client=engines,
        adapters={adapter.name: adapter for adapter in all_adapters},
        pepper=pepper,
        clock=ManualClock(),
    )


def client_of(site: MetricsSite, name: str = "127.0.0.1:8081") -> TestClient:
    return TestClient(site, base_url=f"http://{name}", client=("127.0.0.1", 50000))


def test_every_replica_that_runs_is_a_target_of_this_address(site: MetricsSite) -> None:
    answer = client_of(site).get("/metrics/targets")
    assert answer.headers["content-type"] == "application/json"
    assert [group["labels"]["replica"] for group in answer.json()] == ["chat-1", "chat-2", "chat-3"]
    assert answer.json()[0] == {
        "targets": ["127.0.0.1:8081"],
        "labels": {
            "__metrics_path__": "/metrics/replicas/rep_1",
            "instance": "chat-1",
            "replica": "chat-1",
            "deployment": "chat",
            "node": "gpu-1",
        },
    }


def test_a_replicas_metrics_are_asked_with_its_own_key(site: MetricsSite, engines: Engines) -> None:
    answer = client_of(site).get("/metrics/replicas/rep_1")
    assert answer.status_code == 200
    assert answer.content == engine_text
    assert answer.headers["content-type"].startswith("text/plain")
    ((url, headers),) = engines.asked
    assert url == "http://127.0.0.1:1/metrics"
    assert headers["Authorization"] == "Bearer key-1"


def test_exemplars_come_through_in_the_format_that_has_them(site: MetricsSite) -> None:
    asked = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = client_of(site).get("/metrics/replicas/rep_1", headers=asked)
    assert answer.content.endswith(b"# EOF\n")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")


@pytest.mark.parametrize(
    ("replica", "status"),
    [("rep_2", 502), ("rep_3", 502), ("rep_4", 404), ("rep_5", 404), ("rep_9", 404), ("", 404)],
)
def test_a_replica_that_says_nothing_is_down_for_prometheus(
    site: MetricsSite, replica: str, status: int
) -> None:
    assert client_of(site).get(f"/metrics/replicas/{replica}").status_code == status


@pytest.mark.parametrize("path", ["/metrics/targets", "/metrics/replicas/rep_1"])
def test_a_store_that_is_away_takes_no_replica_away(
    site: MetricsSite, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(Store, "get", away)
    monkeypatch.setattr(Store, "list", away)
    answer = client_of(site).get(path)
    assert answer.status_code == 503
    assert "The store does not answer" in answer.text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/targets", "/metrics/replicas/rep_1"])
def test_it_is_open_to_this_machine_and_to_the_token(
    site: MetricsSite, path: str, engines: Engines
) -> None:
    local, by_name = client_of(site), client_of(site, "control.example:8081")
    assert local.get(path).status_code == 200
    assert local.get(path, headers={"x-forwarded-for": "10.0.0.1"}).status_code == 401
    engines.asked.clear()
    for wrong in ("", f"Bearer {platform_token(pepper)}", "Bearer \xff"):
        refused = by_name.get(path, headers={b"authorization": wrong.encode("latin-1")})
        assert refused.status_code == 401
        assert b"headrace_" not in refused.content
    assert not engines.asked
    shown = {"authorization": f"Bearer {metrics_token(pepper)}"}
    assert by_name.get(path, headers=shown).status_code == 200
    assert by_name.post(path, headers=shown).status_code == 405


def test_targets_have_the_name_under_which_they_were_asked(site: MetricsSite) -> None:
    shown = {"authorization": f"Bearer {metrics_token(pepper)}"}
    answer = client_of(site, "control.example:8081").get("/metrics/targets", headers=shown)
    assert {tuple(group["targets"]) for group in answer.json()} == {("control.example:8081",)}
    assert "key-" not in json.dumps(answer.json())
