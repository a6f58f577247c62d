"""Service accounts reach as far as they were given, and give on no more than that."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.sim.clock import ManualClock
from headrace.spec.accounts import ServiceAccount
from headrace.spec.token_format import service_tokens
from headrace.storage import Database

As = Callable[[str], TestClient]


@pytest.fixture
def acting(admin_app: ASGIApp) -> As:
    """A client that presents a token."""

    def make(token: str) -> TestClient:
        return TestClient(
            admin_app,
            base_url="http://127.0.0.1:8081/admin/v1",
            headers={"authorization": f"Bearer {token}"},
            raise_server_exceptions=False,
        )

    return make


@pytest.fixture
def acme(admin: TestClient) -> str:
    admin.post("/tenants", json={"name": "acme"})
    for name in ("web", "batch"):
        admin.post("/projects", json={"tenant": "acme", "name": name})
    for name in ("small", "big"):
        admin.post("/models", json={"name": name, "source": f"{name}.gguf"})
    return "acme"


def make(client: TestClient, **fields: object) -> dict[str, Any]:
    body = {"tenant": "acme", "name": "robot", "role": "admin", **fields}
    answer = client.post("/service-accounts", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_the_token_is_shown_once_and_opens_what_was_given(
    admin: TestClient, database: Database, acting: As, acme: str
) -> None:
    made = make(admin, role="developer", projects=["web"])
    parsed = service_tokens.parse(str(made["token"]))
    assert parsed is not None
    assert parsed.secret not in admin.get("/service-accounts").text
    assert parsed.secret.encode() not in database.store.list(ServiceAccount)[0].secret_hmac
    robot = acting(str(made["token"]))
    assert robot.post("/keys", json={"project": "web"}).status_code == 201
    assert robot.post("/keys", json={"project": "batch"}).status_code == 404
    assert [p["name"] for p in robot.get("/projects").json()["items"]] == ["web"]
    assert robot.post("/projects", json={"tenant": "acme", "name": "x"}).status_code == 403
    assert robot.get("/usage").status_code == 400
    assert robot.get("/usage", params={"project": "web"}).status_code == 200
    assert robot.get("/usage", params={"project": "batch"}).status_code == 404


def test_a_key_of_a_bounded_account_is_bounded(admin: TestClient, acting: As, acme: str) -> None:
    made = make(admin, models=["small"], endpoints=["chat", "embeddings"])
    robot = acting(str(made["token"]))
    key = robot.post("/keys", json={"project": "web", "endpoints": ["chat", "files"]}).json()
    assert (key["models"], key["endpoints"]) == (["small"], ["chat"])
    assert robot.post("/keys", json={"project": "web", "models": ["big"]}).status_code == 403
    freed = robot.patch(f"/keys/{key['id']}", json={"models": None, "endpoints": None}).json()
    assert (freed["models"], freed["endpoints"]) == (["small"], ["chat", "embeddings"])
    assert robot.patch(f"/keys/{key['id']}", json={"models": ["big"]}).status_code == 403


def test_a_child_can_do_no_more_than_its_parent(admin: TestClient, acting: As, acme: str) -> None:
    parent = acting(str(make(admin, models=["small"])["token"]))
    child = make(parent, name="child", role="owner", projects=["web"])
    assert "owner.write" not in child["permissions"]
    assert child["models"] == ["small"]
    assert len(child["projects"]) == 1
    body = {"tenant": "acme", "name": "x", "role": "admin"}
    assert parent.post("/service-accounts", json={**body, "models": ["big"]}).status_code == 403
    assert parent.post("/service-accounts", json={**body, "projects": ["x"]}).status_code == 400


def test_a_bounded_account_reaches_nothing_by_detours(
    admin: TestClient, acting: As, acme: str
) -> None:
    wide = admin.post("/keys", json={"project": "web", "name": "wide"}).json()
    big = admin.post("/keys", json={"project": "web", "name": "big", "models": ["big"]}).json()
    admin.post("/users", json={"login": "eve"})
    bounded = acting(str(make(admin, models=["small"])["token"]))
    assert bounded.post(f"/keys/{wide['id']}/rotate", json={}).json()["models"] == ["small"]
    assert bounded.post(f"/keys/{big['id']}/rotate", json={}).status_code == 403
    member = {"tenant": "acme", "user": "eve", "role": "developer"}
    assert bounded.put("/members", json=member).status_code == 403
    whole = make(admin, name="whole")
    assert bounded.post(f"/service-accounts/{whole['id']}/revoke").status_code == 403


def test_an_account_of_some_projects_has_nothing_of_the_whole_tenant(
    admin: TestClient, acting: As, acme: str
) -> None:
    made = make(admin, role="owner", projects=["web"])
    assert made["permissions"] == [
        "key.read", "key.write", "member.read", "project.read", "tenant.read", "usage.read",
    ]  # fmt: skip
    robot = acting(str(made["token"]))
    for path in ("/audit", "/webhooks", "/invoices"):
        assert robot.get(path).status_code == 403, path
    hook = {"url": "https://hooks.example/x"}
    assert robot.post("/webhooks", json=hook).status_code == 403
    assert robot.post("/service-accounts", json={"tenant": "acme"}).status_code == 403


def test_revocation_and_expiry_hold_at_once(
    admin: TestClient, acting: As, acme: str, clock: ManualClock
) -> None:
    made = make(admin)
    robot = acting(str(made["token"]))
    assert robot.get("/auth/me").json()["kind"] == "service_account"
    admin.post(f"/service-accounts/{made['id']}/revoke")
    assert robot.get("/auth/me").status_code == 401
    short = acting(str(make(admin, name="short", expires_in_s=60)["token"]))
    assert short.get("/status").status_code == 200
    clock.advance(60)
    assert short.get("/status").status_code == 401


def test_credentials_of_other_types_are_refused(admin: TestClient, acting: As, acme: str) -> None:
    key = admin.post("/keys", json={"project": "web"}).json()["key"]
    token = str(make(admin)["token"])
    wrong = ("hrs_" + key[3:], token[:-1] + ("0" if token[-1] != "0" else "1"), key, token + "0")
    for presented in wrong:
        assert acting(presented).get("/status").status_code == 401
    assert acting(token).post("/session").status_code == 403
