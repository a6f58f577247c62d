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
    assert "no model named 'smol'; did you mean small?" in answer.json()["error"]["message"]


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


def test_rotation_gives_a_new_key_with_the_old_ones_name_and_bounds(
    admin: TestClient, database: Database, clock: ManualClock, project: str
) -> None:
    fields = {"models": ["small"], "endpoints": ["chat"], "limits": {"requests_per_minute": 5}}
    old = admin.post("/keys", json={"project": project, "name": "ci", **fields}).json()
    new = admin.post("/keys/ci/rotate", json={"overlap_s": 3600}).json()
    assert new["id"] != old["id"]
    assert new["key"] != old["key"]
    for name in ("name", "models", "endpoints", "limits", "project_id", "expire_time"):
        assert new[name] == old[name], name
    kept = admin.get(f"/keys/{old['id']}").json()
    assert (kept["state"], kept["successor_id"]) == ("active", new["id"])
    clock.advance(3600)
    assert admin.get(f"/keys/{old['id']}").json()["state"] == "expired"
    assert admin.get("/keys/ci").json()["id"] == new["id"]
    stored = [database.store.get(ApiKey, key["id"]).secret_hmac for key in (old, new)]
    assert stored[0] != stored[1]


def test_rotation_without_an_overlap_revokes_at_once(admin: TestClient, project: str) -> None:
    old = admin.post("/keys", json={"project": project, "name": "ci"}).json()
    admin.post("/keys/ci/rotate", json={"overlap_s": 0})
    assert admin.get(f"/keys/{old['id']}").json()["state"] == "revoked"


def test_an_overlap_never_lengthens_a_life_and_the_successor_lives_as_long(
    admin: TestClient, clock: ManualClock, project: str
) -> None:
    old = admin.post("/keys", json={"project": project, "name": "ci", "expires_in_s": 100}).json()
    clock.advance(90)
    new = admin.post("/keys/ci/rotate", json={"overlap_s": 3600}).json()
    clock.advance(10)
    assert admin.get(f"/keys/{old['id']}").json()["state"] == "expired"
    clock.advance(89)
    assert admin.get(f"/keys/{new['id']}").json()["state"] == "active"
    clock.advance(1)
    assert admin.get(f"/keys/{new['id']}").json()["state"] == "expired"


def test_a_rotated_or_revoked_key_is_not_rotated(admin: TestClient, project: str) -> None:
    old = admin.post("/keys", json={"project": project, "name": "ci"}).json()
    admin.post("/keys/ci/rotate", json={})
    assert admin.post(f"/keys/{old['id']}/rotate", json={}).status_code == 409
    admin.post("/keys/ci/revoke")
    for method, path in (("POST", "/keys/ci/rotate"), ("PATCH", "/keys/ci")):
        assert admin.request(method, path, json={}).status_code == 409


def test_a_change_touches_what_it_names(admin: TestClient, project: str) -> None:
    fields = {"models": ["small"], "allowed_networks": ["10.0.0.0/8"], "expires_in_s": 60}
    admin.post("/keys", json={"project": project, "name": "ci", **fields})
    changed = admin.patch("/keys/ci", json={"endpoints": ["chat"], "models": None}).json()
    assert (changed["models"], changed["endpoints"]) == (None, ["chat"])
    assert changed["allowed_networks"] == ["10.0.0.0/8"]
    assert changed["expire_time"] is not None
    for secret in ("secret_hmac", "state", "project", "created_by", "successor_id"):
        assert admin.patch("/keys/ci", json={secret: "x"}).status_code == 400, secret


def test_model_limits_are_kept_by_model(
    admin: TestClient, database: Database, project: str
) -> None:
    limits = {"small": {"concurrent_requests": 2, "budget_usd": "0.5"}}
    made = admin.post("/keys", json={"project": project, "model_limits": limits}).json()
    assert made["model_limits"]["small"]["budget"]["usd"] == "0.50"
    kept = database.store.get(ApiKey, made["id"]).model_limits
    assert kept is not None
    assert kept["small"].concurrent_requests == 2
    unknown = {"project": project, "model_limits": {"big": {"concurrent_requests": 1}}}
    assert admin.post("/keys", json=unknown).status_code == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_networks", ["10.0.0.1/8"]),
        ("allowed_networks", ["here"]),
        ("allowed_networks", []),
        ("endpoints", ["admin"]),
        ("endpoints", ["chat/completions"]),
        ("models", []),
    ],
)
def test_a_bound_that_makes_no_sense_is_refused(
    admin: TestClient, project: str, field: str, value: object
) -> None:
    answer = admin.post("/keys", json={"project": project, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)
