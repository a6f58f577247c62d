"""Each management action leaves one record, with its change and without its secrets."""

import pytest
from starlette.testclient import TestClient

from headrace.control.admin import managed
from headrace.spec.tenancy import Tenant
from headrace.storage import Database


def records(admin: TestClient, **query: str) -> list[dict[str, object]]:
    items: list[dict[str, object]] = admin.get("/audit", params=query).json()["items"]
    return items


def test_a_change_is_recorded_with_who_what_and_whose(admin: TestClient) -> None:
    tenant = admin.post("/tenants", json={"name": "acme"}).json()
    project = admin.post("/projects", json={"tenant": "acme", "name": "web"}).json()
    key = admin.post("/keys", json={"project": "web", "name": "ci"}).json()
    admin.post("/keys/ci/revoke")
    found = records(admin)
    assert [(r["action"], r["target"]) for r in found] == [
        ("create_tenant", "/admin/v1/tenants"),
        ("create_project", "/admin/v1/projects"),
        ("create_key", "/admin/v1/keys"),
        ("revoke_key", "/admin/v1/keys/ci/revoke"),
    ]
    assert {r["tenant_id"] for r in found} == {tenant["id"]}
    assert {(r["actor_kind"], r["actor_id"]) for r in found} == {("token", "admin-token")}
    assert found[1]["detail"] == {"tenant": "acme", "name": "web", "result_id": project["id"]}
    secret = key["key"].rpartition("_")[2]
    assert secret not in admin.get("/audit").text


def test_reading_and_what_fails_leave_no_record(admin: TestClient) -> None:
    admin.get("/tenants")
    assert admin.post("/projects", json={"tenant": "nobody", "name": "web"}).status_code == 404
    assert admin.post("/tenants", json={"nme": "acme"}).status_code == 400
    assert records(admin) == []


def test_a_record_that_can_not_be_written_undoes_the_change(
    admin: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no room for the record")

    monkeypatch.setattr(managed, "append", fail)
    assert admin.post("/tenants", json={"name": "acme"}).status_code == 500
    assert database.store.list(Tenant) == []


def test_secrets_are_hidden_at_every_depth() -> None:
    assert managed.without_secrets(
        {"password": "a", "inner": {"client_secret": "b", "token": "c", "name": "d"}, "n": 1}
    ) == {
        "password": "(hidden)",
        "inner": {"client_secret": "(hidden)", "token": "(hidden)", "name": "d"},
        "n": 1,
    }


def test_a_large_body_leaves_the_names_of_its_fields(admin: TestClient) -> None:
    price = {"input_usd_per_million": "1", "output_usd_per_million": "1"}
    prices = {f"model-{number}": price for number in range(300)}
    assert admin.post("/prices", json={"name": "many", "prices": prices}).status_code == 201
    assert records(admin)[0]["detail"] == {"fields": ["name", "prices", "result_id"]}


def test_the_log_is_read_in_parts_and_verified(admin: TestClient) -> None:
    for number in range(5):
        admin.post("/tenants", json={"name": f"tenant-{number}"})
    first = admin.get("/audit", params={"limit": 3}).json()
    rest = admin.get("/audit", params={"limit": 3, "after": first["next"]}).json()
    assert [r["sequence"] for r in first["items"] + rest["items"]] == [1, 2, 3, 4, 5]
    assert rest["next"] is None
    newest = records(admin, newest_first="true", limit="1")
    verified = admin.get("/audit/verify").json()
    assert verified == {
        "sound": True,
        "findings": [],
        "records": 5,
        "head_hash": newest[0]["hash"],
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_route_writes_the_log(admin: TestClient, method: str) -> None:
    for path in ("/audit", "/audit/1", "/audit/verify"):
        assert admin.request(method, path).status_code in (404, 405)
