"""Local accounts: passwords are checked, hidden, hard to guess; sessions end when they should."""

from threading import BoundedSemaphore

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.base.errors import RateLimited
from headrace.control.admin import sign_in
from headrace.control.admin.guard import session_cookie
from headrace.control.admin.sign_in import (
    free_failures,
    hash_password,
    password_matches,
    turn_to_hash,
)
from headrace.sim.clock import ManualClock
from headrace.spec.accounts import User
from headrace.storage import Database

password = "a good long password"
login = {"login": "Ada", "password": password}


@pytest.fixture
def ada(admin: TestClient) -> str:
    created = admin.post("/users", json={"login": "ada", "password": password, "is_operator": True})
    assert created.status_code == 201, created.text
    assert created.json()["initial_password"] is None
    return str(created.json()["id"])


@pytest.fixture
def browser(admin_app: ASGIApp) -> TestClient:
    return TestClient(
        admin_app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"x-headrace-console": "1"},
        raise_server_exceptions=False,
    )


def test_a_password_is_kept_as_argon2id_and_shown_nowhere(
    admin: TestClient, database: Database, ada: str
) -> None:
    kept = database.store.get(User, ada).password_hash
    assert kept is not None
    assert kept.startswith("$argon2id$")
    for path in ("/users", "/users/ada", "/audit"):
        text = admin.get(path).text
        assert "argon2" not in text
        assert password not in text


def test_a_made_password_works_and_is_shown_once(admin: TestClient, browser: TestClient) -> None:
    made = admin.post("/users", json={"login": "bob"}).json()["initial_password"]
    answer = browser.post("/auth/login", json={"login": "bob", "password": made})
    assert answer.status_code == 201
    assert made not in admin.get("/users/bob").text


def test_signing_in_and_out(browser: TestClient, ada: str) -> None:
    answer = browser.post("/auth/login", json=login)
    cookie = answer.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "path=/admin/v1"):
        assert part in cookie
    assert browser.get("/auth/me").json()["id"] == ada
    value = browser.cookies[session_cookie]
    assert browser.post("/auth/logout").status_code == 204
    browser.cookies.set(session_cookie, value)
    assert browser.get("/auth/me").status_code == 401


def test_everything_wrong_is_answered_alike(browser: TestClient, ada: str) -> None:
    answers = [
        browser.post("/auth/login", json={"login": name, "password": text})
        for name, text in (("ada", "wrong password!"), ("nobody", password), ("ada", ""))
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


def test_guessing_has_to_wait_and_a_right_password_too(
    browser: TestClient, ada: str, clock: ManualClock
) -> None:
    for _ in range(free_failures):
        browser.post("/auth/login", json={"login": "ada", "password": "wrong password!"})
    refused = browser.post("/auth/login", json=login)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    clock.advance(3)
    assert browser.post("/auth/login", json=login).status_code == 201


def test_a_page_of_another_site_can_not_use_the_cookie(browser: TestClient, ada: str) -> None:
    browser.post("/auth/login", json=login)
    for headers in (
        {"x-headrace-console": ""},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
    ):
        sent = {**headers}
        if headers.get("x-headrace-console") == "":
            del browser.headers["x-headrace-console"]
            sent = {}
        assert browser.get("/auth/me", headers=sent).status_code == 401, headers
        browser.headers["x-headrace-console"] = "1"
    own = {"origin": "http://127.0.0.1:8081", "sec-fetch-site": "same-origin"}
    assert browser.get("/auth/me", headers=own).status_code == 200


def test_a_form_of_another_site_signs_nobody_in(browser: TestClient, ada: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        body = '{"login": "ada", "password": "' + password + '"}'
        answer = browser.post("/auth/login", content=body, headers={"content-type": kind})
        assert answer.status_code == 400, kind


def test_a_new_password_ends_the_sessions(browser: TestClient, ada: str) -> None:
    browser.post("/auth/login", json=login)
    wrong = {"password": "not the old one", "new_password": "another long password"}
    assert browser.post("/auth/password", json=wrong).status_code == 401
    short = {"password": password, "new_password": "short"}
    assert browser.post("/auth/password", json=short).status_code == 400
    right = {"password": password, "new_password": "another long password"}
    assert browser.post("/auth/password", json=right).status_code == 204
    assert browser.get("/auth/me").status_code == 401
    assert browser.post("/auth/login", json=login).status_code == 401


def test_sign_ins_and_failures_are_in_the_audit_log(
    admin: TestClient, browser: TestClient, ada: str
) -> None:
    browser.post("/auth/login", json={"login": "ada", "password": "wrong password!"})
    browser.post("/auth/login", json=login)
    records = admin.get("/audit").json()["items"]
    found = [
        (r["action"], r["outcome"], r["actor_id"]) for r in records if r["action"] == "sign_in"
    ]
    assert found == [("sign_in", "refused", ""), ("sign_in", "done", ada)]


def test_too_many_sign_ins_at_once_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "_places", BoundedSemaphore(2))
    with turn_to_hash():
        assert hash_password(password)
        with turn_to_hash(), pytest.raises(RateLimited):
            hash_password(password)
    assert hash_password(password)


def test_an_account_without_a_password_matches_none() -> None:
    assert not password_matches(None, "")
    assert not password_matches("not a hash", "x")
    assert password_matches(hash_password(password), password)
