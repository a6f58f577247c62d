"""Every route refuses whoever has no credential, however the request is disguised."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.base.errors import ConfigurationError
from headrace.control.admin.app import build_api, build_public_api
from headrace.control.admin.credentials import (
    AdminCredentials,
    session_duration_s,
    sessions_max,
)
from headrace.control.admin.guard import session_cookie
from headrace.sim.clock import ManualClock

hosts = ("127.0.0.1", "localhost:8081", "[::1]:8081")
bad_hosts = (
    "evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1:8081/?",
    "127.0.0.1@evil.example",
    "x/admin/v1/status?",
    "",
    "localhost:999999",
    "localhost, evil.example",
)
bad_authorizations = (
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "Basic YWRtaW46YWRtaW4=",
    "bearer an-admin-token-of-30-character",
    "an-admin-token-of-30-characters",
    "Bearer an-admin-token-of-30-characters extra",
)


@pytest.fixture
def routes() -> list[tuple[str, str]]:
    """Every method and path of the API that asks for a credential, and some that don't exist."""
    public = set(walk(build_public_api().openapi()["paths"]))
    assert public == {
        ("GET", "/admin/v1/auth/methods"),
        ("POST", "/admin/v1/auth/login"),
        ("GET", "/admin/v1/auth/oidc/start"),
        ("GET", "/admin/v1/auth/oidc/callback"),
    } | {("GET", "/admin/v1/openapi.json")}
    return [
        *(route for route in walk(build_api().openapi()["paths"]) if route not in public),
        ("GET", "/admin/v1/openapi.json"),
        ("GET", "/"),
        ("GET", "/admin"),
        ("GET", "/docs"),
    ]


def walk(paths: dict[str, dict[str, object]]) -> Iterator[tuple[str, str]]:
    for path, methods in paths.items():
        for method in methods:
            yield method.upper(), path.replace("{", "").replace("}", "")
    yield "GET", "/admin/v1/openapi.json"


def test_every_route_refuses_wrong_credentials(
    routes: list[tuple[str, str]], stranger: TestClient
) -> None:
    assert len(routes) > 20
    for method, path in routes:
        for value in bad_authorizations:
            headers = {} if value is None else {"authorization": value}
            answer = stranger.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path, value)
            assert answer.json()["error"]["code"] == "invalid_api_key"


def test_odd_methods_and_paths_are_refused_too(stranger: TestClient) -> None:
    for method in ("OPTIONS", "HEAD", "TRACE", "PROPFIND", "GET"):
        for path in ("//admin/v1/status", "/admin/v1/status/", "/admin/v1/%2e%2e/status", "/a;b"):
            assert stranger.request(method, path).status_code == 401


def test_a_foreign_host_is_refused_even_with_the_token(admin: TestClient) -> None:
    for host in bad_hosts:
        answer = admin.get("/status", headers={"host": host})
        assert answer.status_code == 403, host
    for host in hosts:
        assert admin.get("/status", headers={"host": host}).status_code == 200, host


def test_every_route_refuses_a_foreign_host_even_with_the_token(
    routes: list[tuple[str, str]], admin_app: ASGIApp, admin_token: str
) -> None:
    client = TestClient(admin_app, base_url="http://127.0.0.1:8081")
    client.headers["authorization"] = f"Bearer {admin_token}"
    for number, (method, path) in enumerate(routes):
        host = bad_hosts[number % len(bad_hosts)]
        assert client.request(method, path, headers={"host": host}).status_code == 403, (path, host)


def test_no_answer_allows_another_origin(admin: TestClient) -> None:
    answer = admin.get("/status", headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_answers_are_never_cached(admin: TestClient, stranger: TestClient) -> None:
    for answer in (admin.get("/status"), stranger.get("/admin/v1/status"), admin.get("/nope")):
        assert answer.headers["cache-control"] == "no-store"


class TestConsoleSession:
    """The cookie that stands for the token."""

    def signed_in(self, admin: TestClient) -> str:
        answer = admin.post("/session")
        assert answer.status_code == 201
        value = answer.cookies[session_cookie]
        admin.cookies.clear()
        return str(value)

    def status(self, client: TestClient, cookie: str, **headers: str) -> int:
        sent = {"cookie": f"{session_cookie}={cookie}", "x-headrace-console": "1", **headers}
        kept = {name.replace("_", "-"): value for name, value in sent.items() if value}
        return int(client.get("/admin/v1/status", headers=kept).status_code)

    def test_cookie_is_out_of_reach_of_scripts_and_of_other_sites(self, admin: TestClient) -> None:
        cookie = admin.post("/session").headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "path=/admin/v1" in cookie

    def test_session_opens_the_api(self, admin: TestClient, stranger: TestClient) -> None:
        assert self.status(stranger, self.signed_in(admin)) == 200

    def test_cookie_alone_is_not_enough(self, admin: TestClient, stranger: TestClient) -> None:
        cookie = self.signed_in(admin)
        answer = stranger.get("/admin/v1/status", headers={"cookie": f"{session_cookie}={cookie}"})
        assert answer.status_code == 401
        assert self.status(stranger, cookie, sec_fetch_site="cross-site") == 401
        assert self.status(stranger, cookie, sec_fetch_site="same-site") == 401

    def test_a_wrong_bearer_is_not_saved_by_a_session(
        self, admin: TestClient, stranger: TestClient
    ) -> None:
        assert self.status(stranger, self.signed_in(admin), authorization="Bearer wrong") == 401

    def test_sign_out_ends_it_at_once(self, admin: TestClient, stranger: TestClient) -> None:
        cookie = self.signed_in(admin)
        headers = {"cookie": f"{session_cookie}={cookie}", "x-headrace-console": "1"}
        assert stranger.delete("/admin/v1/session", headers=headers).status_code == 204
        assert self.status(stranger, cookie) == 401

    def test_session_expires(
        self, admin: TestClient, stranger: TestClient, clock: ManualClock
    ) -> None:
        cookie = self.signed_in(admin)
        clock.advance(session_duration_s - 1)
        assert self.status(stranger, cookie) == 200
        clock.advance(1)
        assert self.status(stranger, cookie) == 401

    def test_the_oldest_session_makes_room(self, admin: TestClient, stranger: TestClient) -> None:
        oldest = self.signed_in(admin)
        newer = [self.signed_in(admin) for _ in range(sessions_max)]
        assert self.status(stranger, oldest) == 401
        assert self.status(stranger, newer[0]) == 200


def test_a_short_admin_token_is_refused_at_start(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match="needs 20"):
        AdminCredentials("admin", clock)
