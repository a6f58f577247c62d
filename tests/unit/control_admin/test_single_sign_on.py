"""Signing in at a real OpenID provider process on loopback, and everything that must not work."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.base.clock import SystemClock
from headrace.base.errors import AuthenticationFailed, UpstreamFailed
from headrace.control.admin import create_admin_app
from headrace.control.admin.guard import session_cookie
from headrace.control.admin.single_sign_on import (
    ClaimRule,
    SingleSignOn,
    SingleSignOnSettings,
    challenge_of,
)
from headrace.control.admin.single_sign_on_routes import binding_cookie
from headrace.http.egress import EgressAnswer, EgressPolicy
from headrace.http.egress_client import EgressClient
from headrace.spec.accounts import Member, User
from headrace.spec.roles import Role
from headrace.spec.tenancy import Tenant
from headrace.storage import Database

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("oidc_provider_mock") is None,
    reason="the package oidc-provider-mock is not installed",
)
base = "http://127.0.0.1:8081"
callback = f"{base}/admin/v1/auth/oidc/callback"
people = (
    {"sub": "ada", "name": "Ada", "email": "ada@acme.example", "groups": ["acme-dev", "acme-pay"]},
    {"sub": "root", "preferred_username": "ada@acme.example", "groups": ["platform"]},
    {"sub": "eve", "groups": ["elsewhere"]},
)
rules = (
    ClaimRule(value="acme-dev", tenant="acme", role=Role.DEVELOPER),
    ClaimRule(value="acme-pay", tenant="acme", role=Role.VIEWER),
    ClaimRule(value="acme-dev", tenant="a tenant that does not exist", role=Role.OWNER),
    ClaimRule(value="platform", operator=True),
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider process with three people."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    claims = [part for person in people for part in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "-n", "true"]
    process = subprocess.Popen(
        [*command, *claims], stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONWARNINGS": ""}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/.well-known/openid-configuration", process)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.05)  # another process starts
        else:
            return
    raise AssertionError("the provider did not start")


class Browser:
    """A person's browser: goes to the provider, signs in there, and comes back."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}

    async def ask(self, method: str, url: str, **options: str) -> httpx2.Response:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = await self.client.request(method, url, headers={"cookie": cookie, **options})
        for line in answer.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
        return answer

    async def start(self) -> str:
        answer = await self.ask("GET", "/admin/v1/auth/oidc/start")
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    async def come_back(self, subject: str) -> str:
        """The address by which the provider sends the browser back."""
        return await self.sign_in_at(await self.start(), subject)

    async def sign_in_at(self, url: str, subject: str) -> str:
        async with httpx2.AsyncClient() as outside:
            answer = await outside.post(url, data={"sub": subject})
        assert answer.status_code == 302, answer.text
        location = answer.headers["location"]
        assert location.startswith(callback)
        return str(location)

    async def me(self) -> httpx2.Response:
        return await self.ask("GET", "/admin/v1/auth/me", **{"x-headrace-console": "1"})


@pytest.fixture
async def fetcher() -> AsyncIterator[EgressClient]:
    client = EgressClient(EgressPolicy.allowing(["127.0.0.1"]))
    yield client
    await client.close()


@pytest.fixture
def settings(issuer: str) -> SingleSignOnSettings:
    return SingleSignOnSettings(
        issuer=issuer,
        client_id="headrace",
        client_secret="a secret/with%odd",
        redirect_url=callback,
        rules=rules,
    )


@pytest.fixture
async def client(
    database: Database, settings: SingleSignOnSettings, fetcher: EgressClient
) -> AsyncIterator[httpx2.AsyncClient]:
    database.store.create(Tenant(id="ten_1", name="acme", create_time=0.0))
    clock = SystemClock()
    app = create_admin_app(
        database,
        "an-admin-token-of-30-characters",
        pepper=b"p" * 32,
        clock=clock,
        single_sign_on=SingleSignOn(settings, fetcher, clock),
    )
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
        yield client


async def test_a_person_gets_the_roles_of_their_groups(
    client: httpx2.AsyncClient, database: Database
) -> None:
    browser = Browser(client)
    answer = await browser.ask("GET", await browser.come_back("ada"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = next(
        line for line in answer.headers.get_list("set-cookie") if line.startswith(session_cookie)
    )
    assert "samesite=strict" in cookie.lower()
    me = (await browser.me()).json()
    assert (me["name"], me["is_operator"]) == ("ada@acme.example", False)
    assert [grant["tenant"] for grant in me["grants"]] == ["acme"]
    assert "key.write" in me["grants"][0]["permissions"]
    (member,) = database.store.list(Member)
    assert (member.role, member.from_claims) == (Role.DEVELOPER, True)
    assert [r.record.action for r in database.audit.read(limit=9)] == ["sign_in"]


async def test_roles_from_claims_follow_the_claims(
    client: httpx2.AsyncClient, database: Database
) -> None:
    browser = Browser(client)
    await browser.ask("GET", await browser.come_back("ada"))
    (member,) = database.store.list(Member)
    store = database.store
    store.update(msgspec.structs.replace(member, role=Role.OWNER))
    user = store.get(User, member.name)
    store.update(msgspec.structs.replace(user, is_operator=True))
    await browser.ask("GET", await browser.come_back("ada"))
    (member,) = store.list(Member)
    assert member.role is Role.DEVELOPER
    assert not store.get(User, member.name).is_operator


async def test_nobody_becomes_somebody_else_by_a_login_or_address(
    client: httpx2.AsyncClient, database: Database
) -> None:
    local = User(id="usr_1", name="ada@acme.example", create_time=0.0, email="ada@acme.example")
    database.store.create(local)
    browser = Browser(client)
    await browser.ask("GET", await browser.come_back("root"))
    me = (await browser.me()).json()
    assert me["is_operator"]
    assert me["id"] != local.id
    assert me["name"].startswith("ada@acme.example-")
    assert database.store.get(User, local.id).name == local.name


async def test_somebody_without_a_role_is_refused(
    client: httpx2.AsyncClient, database: Database
) -> None:
    browser = Browser(client)
    answer = await browser.ask("GET", await browser.come_back("eve"))
    assert answer.status_code == 403
    assert database.store.list(User) == []
    assert (await browser.me()).status_code == 401


async def test_a_closed_account_stays_closed(
    client: httpx2.AsyncClient, database: Database
) -> None:
    browser = Browser(client)
    await browser.ask("GET", await browser.come_back("ada"))
    (user,) = database.store.list(User)
    database.store.update(msgspec.structs.replace(user, active=False))
    assert (await browser.me()).status_code == 401
    assert (await browser.ask("GET", await browser.come_back("ada"))).status_code == 403


async def test_a_way_back_works_once_and_in_the_browser_that_began(
    client: httpx2.AsyncClient,
) -> None:
    victim, attacker = Browser(client), Browser(client)
    stolen = await attacker.come_back("ada")
    await victim.start()
    assert (await victim.ask("GET", stolen)).status_code == 401
    browser = Browser(client)
    way_back = await browser.come_back("ada")
    binding = browser.cookies[binding_cookie]
    assert (await browser.ask("GET", way_back)).status_code == 303
    browser.cookies[binding_cookie] = binding
    assert (await browser.ask("GET", way_back)).status_code == 401


async def test_what_the_provider_is_asked_and_told_is_bound_together(
    client: httpx2.AsyncClient,
) -> None:
    browser = Browser(client)
    asked = parse_qs(urlsplit(await browser.start()).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["state"][0]) == len(asked["nonce"][0]) == len(asked["code_challenge"][0]) == 43


async def test_a_token_with_another_nonce_is_refused(client: httpx2.AsyncClient) -> None:
    browser = Browser(client)
    parts = urlsplit(await browser.start())
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    changed = urlencode({**query, "nonce": "x" * 43})
    way_back = await browser.sign_in_at(parts._replace(query=changed).geturl(), "ada")
    assert (await browser.ask("GET", way_back)).status_code == 401


async def test_the_code_is_exchanged_with_the_verifier_of_its_challenge(
    settings: SingleSignOnSettings, fetcher: EgressClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    fetch = fetcher.fetch

    async def fetch_and_note(method: str, url: str, **options: Any) -> EgressAnswer:
        bodies.append(options.get("body") or b"")
        return await fetch(method, url, **options)

    monkeypatch.setattr(fetcher, "fetch", fetch_and_note)
    single_sign_on = SingleSignOn(settings, fetcher, SystemClock())
    url, binding = await single_sign_on.start()
    challenge = parse_qs(urlsplit(url).query)["code_challenge"][0]
    state = parse_qs(urlsplit(url).query)["state"][0]
    with pytest.raises(AuthenticationFailed, match="did not accept the code"):
        await single_sign_on.finish(state=state, code="made up", binding=binding, issuer=None)
    (sent,) = [parse_qs(body.decode()) for body in bodies if b"code_verifier" in body]
    assert challenge_of(sent["code_verifier"][0]) == challenge
    assert "client_secret" not in sent


@pytest.mark.parametrize(
    "query", ["", "state=x&code=y", "error=access_denied&state=x", "code=y", "state=%00&code=y"]
)
async def test_a_made_up_way_back_is_refused(client: httpx2.AsyncClient, query: str) -> None:
    answer = await Browser(client).ask("GET", f"/admin/v1/auth/oidc/callback?{query}")
    assert answer.status_code == 401


async def test_a_provider_that_says_it_is_another_is_refused(
    issuer: str, settings: SingleSignOnSettings, fetcher: EgressClient
) -> None:
    wrong = msgspec.structs.replace(settings, issuer=issuer + "/")
    with pytest.raises(UpstreamFailed, match="another issuer"):
        await SingleSignOn(wrong, fetcher, SystemClock()).start()


def test_without_a_provider_there_is_none(stranger: TestClient) -> None:
    assert stranger.get("/admin/v1/auth/methods").json()["single_sign_on"] is False
    assert stranger.get("/admin/v1/auth/oidc/start").status_code == 404
