"""Every route x role, and what is hidden from whom. The table is written by hand, not computed."""

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.control.admin.app import build_api, build_public_api
from headrace.spec.accounts import Member, User
from headrace.spec.roles import Role
from headrace.storage import Database

base = "http://127.0.0.1:8081/admin/v1"
everybody = frozenset(Role)
owner = frozenset({Role.OWNER})
managers = owner | {Role.ADMIN}
builders = managers | {Role.DEVELOPER}
payers = managers | {Role.BILLING}
seers = builders | {Role.VIEWER}

# Who of a tenant's members may call what. A route that is not here is for operators alone.
open_routes: dict[tuple[str, str], frozenset[Role]] = {
    ("GET", "/status"): everybody,
    ("GET", "/auth/me"): everybody,
    ("GET", "/auth/methods"): everybody,
    ("POST", "/auth/login"): everybody,
    ("GET", "/auth/oidc/start"): everybody,
    ("GET", "/auth/oidc/callback"): everybody,
    ("POST", "/auth/logout"): everybody,
    ("POST", "/auth/password"): everybody,
    ("POST", "/session"): everybody,
    ("DELETE", "/session"): everybody,
    ("GET", "/tenants"): everybody,
    ("GET", "/tenants/{tenant}"): everybody,
    ("GET", "/projects"): everybody,
    ("GET", "/projects/{project}"): everybody,
    ("POST", "/projects"): managers,
    ("PATCH", "/projects/{project}"): managers,
    ("GET", "/keys"): seers,
    ("GET", "/keys/{key}"): seers,
    ("POST", "/keys"): builders,
    ("PATCH", "/keys/{key}"): builders,
    ("POST", "/keys/{key}/rotate"): builders,
    ("POST", "/keys/{key}/revoke"): builders,
    ("GET", "/usage"): everybody,
    ("GET", "/limits"): everybody,
    ("GET", "/usage/export"): payers,
    ("GET", "/invoices"): payers,
    ("GET", "/invoices/{invoice}"): payers,
    ("GET", "/invoices/{invoice}/document"): payers,
    ("GET", "/invoices/{invoice}/credit-notes"): payers,
    ("GET", "/credit-notes/{note}/document"): payers,
    ("GET", "/tenants/{tenant}/wallet"): payers,
    ("GET", "/tenants/{tenant}/entries"): payers,
    ("GET", "/tenants/{tenant}/terms"): payers,
    ("GET", "/payments"): payers,
    ("GET", "/billing"): payers,
    ("GET", "/events"): everybody,
    ("GET", "/requests"): everybody,
    ("PUT", "/tenants/{tenant}/billing-profile"): owner | {Role.BILLING},
    ("GET", "/members"): seers,
    ("PUT", "/members"): managers,
    ("DELETE", "/members/{member}"): managers,
    ("GET", "/service-accounts"): seers,
    ("POST", "/service-accounts"): managers,
    ("POST", "/service-accounts/{account}/revoke"): managers,
    ("GET", "/audit"): managers,
    ("GET", "/webhooks"): payers,
    ("POST", "/webhooks"): payers,
    ("PATCH", "/webhooks/{webhook}"): payers,
    ("POST", "/webhooks/{webhook}/rotate"): payers,
    ("POST", "/webhooks/{webhook}/test"): payers,
    ("GET", "/webhooks/{webhook}/deliveries"): payers,
    ("DELETE", "/webhooks/{webhook}"): payers,
}

SignIn = Callable[..., TestClient]


@pytest.fixture
def routes() -> list[tuple[str, str]]:
    paths = build_api().openapi()["paths"]
    return [
        (method.upper(), path.removeprefix("/admin/v1"))
        for path, methods in paths.items()
        for method in methods
    ]


@pytest.fixture
def sign_in(admin_app: ASGIApp, admin: TestClient) -> SignIn:
    """A client with a session of a person who has a role in a tenant; the tenant is made."""

    def make(role: Role | None = None, tenant: str = "acme", login: str = "") -> TestClient:
        admin.post("/tenants", json={"name": tenant})
        name = login or f"{role or 'nobody'}-{tenant}"
        password = "a password of its own"
        created = admin.post("/users", json={"login": name, "password": password})
        assert created.status_code == 201, created.text
        if role is not None:
            body = {"tenant": tenant, "user": name, "role": role}
            assert admin.put("/members", json=body).status_code == 200
        client = TestClient(
            admin_app,
            base_url=base,
            headers={"x-headrace-console": "1"},
            raise_server_exceptions=False,
        )
        answer = client.post("/auth/login", json={"login": name, "password": password})
        assert answer.status_code == 201, answer.text
        return client

    return make


def test_every_route_is_closed_to_roles_that_the_table_does_not_name(
    routes: list[tuple[str, str]], sign_in: SignIn
) -> None:
    assert set(open_routes) <= set(routes)
    for role in Role:
        client = sign_in(role)
        for method, path in routes:
            if (method, path) in (("POST", "/auth/logout"), ("DELETE", "/session")):
                continue  # or the rest would be asked by nobody
            answer = client.request(
                method, path.replace("{", "").replace("}", ""), follow_redirects=False
            )
            allowed = role in open_routes.get((method, path), frozenset())
            assert (answer.status_code != 403) is allowed, (role, method, path, answer.text)
            assert answer.status_code < 500, (role, method, path, answer.text)


def test_disguised_routes_stay_closed(sign_in: SignIn) -> None:
    viewer = sign_in(Role.VIEWER)
    for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"):
        for path in (
            "/tenants/",
            "//tenants",
            "/status/../tenants",
            "/tenants;x=/status",
            "/%74enants",
        ):
            answer = viewer.request(method, path, json={"name": "mine"}, follow_redirects=False)
            assert answer.status_code in (307, 400, 403, 404, 405), (method, path)
    assert viewer.request("POST", "/tenants", json={"name": "x"}).status_code == 403
    for host in ("evil.example", "127.0.0.1:8081/?", "x/admin/v1/auth/methods?"):
        assert viewer.get("/tenants", headers={"host": host}).status_code == 403


foreign_hosts = (
    "evil.example", "127.0.0.1.evil.example", "127.0.0.1:8081/?", "127.0.0.1@evil.example",
    "localhost:999999", "localhost, evil.example", "",
)  # fmt: skip
odd_methods = ("TRACE", "PROPFIND", "CONNECT", "GETX")


def disguises(method: str, path: str, number: int) -> tuple[str, str, dict[str, str]]:
    """One way, by number, to ask for a route otherwise than it is asked for."""
    place = number // 3
    if number % 3 == 0:
        return method, path, {"host": foreign_hosts[place % len(foreign_hosts)]}
    if number % 3 == 1:
        return odd_methods[place % len(odd_methods)], path, {}
    first, rest = path[1:2], path[2:]
    paths = (
        f"/{path}", f"{path}/", f"{path};a=b", f"/%{ord(first):02x}{rest}", f"/x/..{path}",
        f"/.{path}", f"{path}%00", f"{path}\\",
    )  # fmt: skip
    return method, paths[place % len(paths)], {}


def test_every_route_is_closed_to_every_role_that_asks_for_it_in_disguise(
    routes: list[tuple[str, str]], sign_in: SignIn
) -> None:
    walked = [route for route in routes if route[1] not in ("/auth/logout", "/session")]
    for offset, role in enumerate(Role):  # so that a route has another disguise for each role
        client = sign_in(role)
        for number, (method, path) in enumerate(walked, start=offset):
            plain = path.replace("{", "").replace("}", "")
            asked = disguises(method, plain, number)
            answer = client.request(
                asked[0], asked[1], headers=asked[2], json={}, follow_redirects=False
            )
            what = (role, asked, answer.text)
            if asked[2]:
                assert answer.status_code == 403, what
            elif asked[0] != method or (method, path) not in open_routes:
                assert answer.status_code in (307, 400, 401, 403, 404, 405), what
            else:
                assert answer.status_code < 500, what  # the same route, or none; in nobody's reach


def test_another_tenants_things_are_not_there(admin: TestClient, sign_in: SignIn) -> None:
    mine, theirs = sign_in(Role.OWNER, "acme"), sign_in(Role.OWNER, "rival")
    project = theirs.post("/projects", json={"tenant": "rival", "name": "web"}).json()
    key = theirs.post("/keys", json={"project": "rival/web", "name": "ci"}).json()
    hook = theirs.post("/webhooks", json={"url": "https://rival.example/hook"}).json()
    members = theirs.get("/members").json()["items"]
    for path in (
        "/tenants/rival", "/projects/rival/web", f"/projects/{project['id']}", "/keys/ci",
        f"/keys/{key['id']}", f"/webhooks/{hook['id']}/deliveries",
        "/usage?tenant=rival", "/audit?tenant=rival", "/members?tenant=rival",
    ):  # fmt: skip
        assert mine.get(path).status_code == 404, path
    for method, path, body in (
        ("PATCH", f"/keys/{key['id']}", {"name": "stolen"}),
        ("POST", f"/keys/{key['id']}/rotate", {}),
        ("POST", f"/keys/{key['id']}/revoke", {}),
        ("POST", "/keys", {"project": project["id"]}),
        ("POST", "/projects", {"tenant": "rival", "name": "x"}),
        ("PUT", "/members", {"tenant": "rival", "user": "owner-acme", "role": "viewer"}),
        ("DELETE", f"/members/{members[0]['id']}", None),
        ("DELETE", f"/webhooks/{hook['id']}", None),
    ):
        assert mine.request(method, path, json=body).status_code == 404, path
    for path in ("/tenants", "/projects", "/keys", "/members", "/webhooks", "/service-accounts"):
        text = mine.get(path).text
        assert "rival" not in text, path
    assert "rival" not in mine.get("/audit").text
    assert admin.get(f"/keys/{key['id']}").json()["name"] == "ci"


def test_an_admin_makes_no_owner_and_unmakes_none(sign_in: SignIn, database: Database) -> None:
    sign_in(Role.OWNER)
    admin_member = sign_in(Role.ADMIN)
    sign_in(None, login="new")
    owner_id = next(m.id for m in database.store.list(Member) if m.role is Role.OWNER)
    for role, status in (("owner", 403), ("billing", 403), ("admin", 200), ("developer", 200)):
        body = {"tenant": "acme", "user": "new", "role": role}
        assert admin_member.put("/members", json=body).status_code == status, role
    assert admin_member.delete(f"/members/{owner_id}").status_code == 403
    demoted = {"tenant": "acme", "user": "owner-acme", "role": "viewer"}
    assert admin_member.put("/members", json=demoted).status_code == 403


def test_the_last_owner_stays(sign_in: SignIn, database: Database) -> None:
    only = sign_in(Role.OWNER)
    member_id = database.store.list(Member)[0].id
    assert only.delete(f"/members/{member_id}").status_code == 409
    body = {"tenant": "acme", "user": "owner-acme", "role": "viewer"}
    assert only.put("/members", json=body).status_code == 409
    assert database.store.list(Member)[0].role is Role.OWNER


def test_nobody_gives_themselves_more(sign_in: SignIn, database: Database) -> None:
    for role in (Role.ADMIN, Role.DEVELOPER, Role.BILLING, Role.VIEWER):
        client = sign_in(role)
        me = client.get("/auth/me").json()
        body = {"tenant": "acme", "user": me["id"], "role": "owner"}
        assert client.put("/members", json=body).status_code == 403
        assert client.patch(f"/users/{me['id']}", json={"is_operator": True}).status_code == 403
        assert not database.store.get(User, me["id"]).is_operator


def test_deactivation_and_a_new_role_hold_from_the_next_request(
    admin: TestClient, sign_in: SignIn
) -> None:
    client = sign_in(Role.ADMIN)
    assert client.get("/audit").status_code == 200
    admin.put("/members", json={"tenant": "acme", "user": "admin-acme", "role": "viewer"})
    assert client.get("/audit").status_code == 403
    admin.patch("/users/admin-acme", json={"active": False})
    assert client.get("/status").status_code == 401


def test_an_operator_among_people_may_everything(admin: TestClient, sign_in: SignIn) -> None:
    client = sign_in(None, login="chief")
    assert client.post("/tenants", json={"name": "x"}).status_code == 403
    admin.patch("/users/chief", json={"is_operator": True})
    assert client.post("/tenants", json={"name": "x"}).status_code == 201


def test_public_routes_are_few() -> None:
    assert sorted(build_public_api().openapi()["paths"]) == [
        "/admin/v1/auth/login",
        "/admin/v1/auth/methods",
        "/admin/v1/auth/oidc/callback",
        "/admin/v1/auth/oidc/start",
    ]
