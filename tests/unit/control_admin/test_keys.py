"""Keys through the API: shown once, checked against the store, revoked for good."""

import pytest
from starlette.testclient import TestClient

from headrace.sim.clock import ManualClock
from headrace.spec.api_key_format import parse_key, secret_matches
from headrace.spec.tenancy import ApiKey
from headrace.storage import Database


@pytest.fixture
def project(admin: TestClient) -> str:
    admin.post("/tenants", json={"name": "acme"})
    admin.post("/projects", json={"tenant": "acme", "name": "web"})
    admin.post("/models", json={"name": "small", "source": "small.gguf"})
    return "acme/web"


def test_the_key_that_is_shown_matches_what_is_stored(
    admin: TestClient, database: Database, project: str
) -> None:
    created = admin.post("/keys", json={"project": project, "models": ["small"]}).json()
    parsed = parse_key(created["key"])
    assert parsed is not None
    assert parsed.key_id == created["id"]
    stored = database.store.get(ApiKey, created["id"])
    assert secret_matches(b"p" * 32, parsed.secret, stored.secret_hmac)
    assert stored.models == ("small",)


def test_the_key_is_shown_once(admin: TestClient, project: str) -> None:
    created = admin.post("/keys", json={"project": project, "name": "ci"}).json()
    secret = created["key"].rpartition("_")[2]
    for path in ("/keys", "/keys/ci", f"/keys/{created['id']}"):
        text = admin.get(path).text
        assert secret not in text
        assert "hmac" not in text


def test_a_key_expires(admin: TestClient, clock: ManualClock, project: str) -> None:
    admin.post("/keys", json={"project": project, "name": "ci", "expires_in_s": 60})
    assert admin.get("/keys/ci").json()["state"] == "active"
    clock.advance(60)
    assert admin.get("/keys/ci").json()["state"] == "expired"


def test_revoking_twice_is_the_same_as_once(admin: TestClient, project: str) -> None:
    admin.post("/keys", json={"project": project, "name": "ci"})
    for _ in range(2):
        answer = admin.post("/keys/ci/revoke")
        assert answer.status_code == 200
        assert answer.json()["state"] == "revoked"


def test_an_allow_list_names_models_that_exist(admin: TestClient, project: str) -> None:
    answer = admin.post("/keys", json={"project": project, "models": ["smol"]})
    assert answer.status_code == 400
    assert "no model named smol" in answer.json()["error"]["message"]


def test_an_unknown_field_is_named(admin: TestClient, project: str) -> None:
    answer = admin.post("/keys", json={"project": project, "secret_hmac": "00"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "secret_hmac"


@pytest.mark.parametrize("seconds", [0, -5, 10**12, "soon", 1.5])
def test_a_lifetime_out_of_bounds_is_refused(
    admin: TestClient, project: str, seconds: object
) -> None:
    answer = admin.post("/keys", json={"project": project, "expires_in_s": seconds})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "expires_in_s"


def test_keys_are_listed_by_project(admin: TestClient, project: str) -> None:
    admin.post("/projects", json={"tenant": "acme", "name": "batch"})
    admin.post("/keys", json={"project": project, "name": "one"})
    admin.post("/keys", json={"project": "batch", "name": "two"})
    listed = admin.get("/keys", params={"project": "batch"}).json()["items"]
    assert [key["name"] for key in listed] == ["two"]


def test_a_keys_text_in_place_of_its_name_is_refused_and_not_repeated(
    admin: TestClient, project: str
) -> None:
    text = admin.post("/keys", json={"project": project}).json()["key"]
    for answer in (admin.get(f"/keys/{text}"), admin.post(f"/keys/{text}/revoke")):
        assert answer.status_code == 400
        assert text not in answer.text
    assert admin.post("/keys", json={"project": project, "name": text[:60]}).status_code == 400
