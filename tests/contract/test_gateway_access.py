"""Who may ask what of a gateway, what it refuses, and what never leaves it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from headrace.base.errors import Unavailable
from headrace.gateway.generating_routes import body_bytes_max
from headrace.gateway.route_table import Access
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, pepper
from headrace.spec.models import Model
from headrace.spec.platform_token import metrics_token, platform_token
from headrace.spec.tenancy import ApiKey, KeyState, Tenant

messages = [{"role": "user", "content": "Hello there"}]
wrong_keys = [
    "",
    "Basic aGVsbG8=",
    "Bearer",
    "Bearer hr_short",
    "Bearer hr_" + "0" * 26 + "_" + "f" * 64,
    "Bearer hr_" + "0" * 25 + "2_" + "0" * 64,
    "Bearer ' OR 1=1 --",
]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine(api_key="engine-canary")]) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, Any]:
    body = {"model": model_name, "messages": messages, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def expect(site: GatewaySite, client: aiohttp.ClientSession, status: int) -> None:
    """The answer once the gateway has polled the store."""
    await site.gateway.follower.load()
    assert (await chat(client))[0] == status


def log_lines(site: GatewaySite) -> bytes:
    site.gateway.access_log.flush()
    return site.access_log.getvalue()


@pytest.mark.parametrize("authorization", wrong_keys)
async def test_every_wrong_key_gets_the_same_401_on_every_route(
    site: GatewaySite, authorization: str
) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        for route in site.gateway.app.routes:
            if route.access is not Access.KEY:
                continue
            async with client.request(route.method, route.name, json={}) as answer:
                body = await answer.json()
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert body["error"]["code"] == "invalid_api_key"
            assert body["error"]["type"] == "authentication_error"


async def test_only_probes_and_local_metrics_are_open(site: GatewaySite) -> None:
    open_routes = {r.name for r in site.gateway.app.routes if r.access is Access.PUBLIC}
    assert open_routes == {"/livez", "/readyz", "/health"}
    async with aiohttp.ClientSession(site.url) as client:
        async with client.get("/metrics") as answer:
            assert answer.status == 200
        for headers in ({"X-Forwarded-For": "10.0.0.1"}, {"Host": "127.0.0.1.example"}):
            async with client.get("/metrics", headers=headers) as answer:
                assert answer.status == 401


async def test_what_programs_ask_every_second_is_no_line_of_the_log(site: GatewaySite) -> None:
    async with aiohttp.ClientSession(site.url) as client:
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            async with client.get(path) as answer:
                assert answer.status == 200
        ours = {"Authorization": f"Bearer {platform_token(pepper)}"}
        async with client.get("/internal/signals", headers=ours) as answer:
            assert answer.status == 200
        assert log_lines(site) == b""
        async with client.get("/internal/signals") as answer:
            assert answer.status == 401
        async with client.get("/v1/models", headers={"Authorization": "Bearer x"}) as answer:
            assert answer.status == 401
    routes = [json.loads(line)["route"] for line in log_lines(site).splitlines()]
    assert routes == ["/internal/signals", "/v1/models"]


async def test_metrics_open_to_the_metrics_token_and_to_no_customer(site: GatewaySite) -> None:
    presented = {site.api_key: 401, platform_token(pepper): 401, metrics_token(pepper): 200}
    async with aiohttp.ClientSession(site.url) as client:
        for token, status in presented.items():
            headers = {"X-Forwarded-For": "10.0.0.1", "Authorization": f"Bearer {token}"}
            async with client.get("/metrics", headers=headers) as answer:
                assert answer.status == status
        headers = {"Authorization": f"Bearer {metrics_token(pepper)}"}
        for path in ("/internal/signals", "/v1/models"):
            async with client.get(path, headers=headers) as answer:
                assert answer.status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/chat/completions/",
        "//v1/models",
        "/V1/models",
        "/v1/models%00",
        "/internal/usage/a",
    ],
)
async def test_a_path_that_is_no_route_is_404_without_a_key(site: GatewaySite, path: str) -> None:
    async with aiohttp.ClientSession() as client:
        headers = {"Host": "x/livez?"}
        async with client.get(URL(site.url + path, encoded=True), headers=headers) as answer:
            assert answer.status in (401, 404)


async def test_an_unknown_model_is_404_and_a_forbidden_one_403(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    status, body = await chat(client, model="nothing")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "not_found", "model")
    key = site.database.store.get(ApiKey, make_id("key", 1))
    site.database.store.update(msgspec.structs.replace(key, models=("other",)))
    await expect(site, client, 403)
    async with client.get("/v1/models") as answer:
        assert (await answer.json())["data"] == []
    async with client.get(f"/v1/models/{model_name}") as answer:
        assert answer.status == 404


async def test_models_lists_what_the_key_may_use(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as answer:
        (card,) = (await answer.json())["data"]
    assert card["id"] == model_name
    async with client.get(f"/v1/models/{model_name}") as answer:
        assert (await answer.json())["id"] == model_name


@pytest.mark.parametrize("change", ["revoked", "expired"])
async def test_a_key_that_ends_is_401_at_once(
    site: GatewaySite, client: aiohttp.ClientSession, change: str
) -> None:
    assert (await chat(client))[0] == 200
    key = site.database.store.get(ApiKey, make_id("key", 1))
    ended = (
        msgspec.structs.replace(key, state=KeyState.REVOKED)
        if change == "revoked"
        else msgspec.structs.replace(key, expire_time=1.0)
    )
    site.database.store.update(ended)
    await expect(site, client, 401)


async def test_a_suspended_tenant_is_403(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    tenant = site.database.store.get(Tenant, make_id("ten", 1))
    site.database.store.update(msgspec.structs.replace(tenant, active=False))
    await expect(site, client, 403)


async def test_an_inactive_model_is_404(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    model = site.database.store.get(Model, make_id("mod", 1))
    site.database.store.update(msgspec.structs.replace(model, active=False))
    await expect(site, client, 404)


async def test_valid_keys_work_on_while_the_store_is_away(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away() -> int:
        loop.call_soon_threadsafe(asked.set)
        raise Unavailable("the database is away")

    monkeypatch.setattr(site.database.store, "revision", away)
    await asked.wait()
    assert (await chat(client))[0] == 200


@pytest.mark.parametrize(
    "field",
    [
        "api_base",
        "base_url",
        "extra_headers",
        "extra_body",
        "chat_template",
        "chat_template_kwargs",
        "cache_salt",
        "custom_llm_provider",
        "lora_request",
        "trust_remote_code",
    ],
)
async def test_fields_that_would_choose_an_upstream_a_template_or_code_are_refused(
    site: GatewaySite, client: aiohttp.ClientSession, field: str
) -> None:
    status, body = await chat(client, **{field: "http://169.254.169.254/"})
    assert (status, body["error"]["param"]) == (400, field)
    assert site.engines[0].seen == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"model":"demo","messages":[]}']
)
async def test_malformed_bodies_are_400_and_reach_nothing(
    site: GatewaySite, client: aiohttp.ClientSession, body: bytes
) -> None:
    async with client.post("/v1/chat/completions", data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "invalid_request_error"
    assert site.engines[0].seen == []


async def test_a_body_over_the_limit_is_413(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    body = io.BytesIO(b"x" * (body_bytes_max + 1))
    async with client.post("/v1/chat/completions", data=body) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "payload_too_large"


async def test_no_secret_or_prompt_is_in_any_log_metric_or_error(
    site: GatewaySite,
    client: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG")
    prompt_canary, model_canary = "prompt-canary-5612", "model-canary-9911"
    bodies = b""
    for fields in (
        {"messages": [{"role": "user", "content": prompt_canary}]},
        {"messages": [{"role": "user", "content": prompt_canary}], "stream": True},
        {"messages": [{"role": prompt_canary, "content": "x"}]},
    ):
        async with client.post(
            "/v1/chat/completions", json={"model": model_name, **fields}
        ) as answer:
            bodies += await answer.read()
    await chat(client, model=model_canary)
    async with aiohttp.ClientSession(site.url) as stranger:
        headers = {"Authorization": f"Bearer {site.api_key[:-1]}x", "X-Api-Key": "header-canary"}
        async with stranger.get(f"/v1/models?key={site.api_key}", headers=headers) as answer:
            bodies += await answer.read()
        async with stranger.get("/metrics") as answer:
            bodies += await answer.read()
    log = log_lines(site)
    assert log.count(b"\n") >= 5
    out, err = capfd.readouterr()
    text = log.decode() + caplog.text + out + err
    for canary in (prompt_canary, model_canary, "header-canary"):
        assert canary not in text
    for secret in ("engine-canary", site.api_key, site.api_key[-40:]):
        assert secret not in text
        assert secret not in bodies.decode()


async def test_the_access_log_says_what_a_request_was_and_used(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await chat(client)
    line = json.loads(log_lines(site).splitlines()[-1])
    assert line["route"] == "/v1/chat/completions"
    assert line["status"] == 200
    assert line["outcome"] == "finished"
    assert line["completion_tokens"] == 4
    assert line["key_id"] == make_id("key", 1)
    assert line["request_id"] == site.engines[0].seen[0].request_id


async def test_metrics_count_settled_tokens_without_naming_anybody(
    client: aiohttp.ClientSession,
) -> None:
    await chat(client)
    async with client.get("/metrics") as answer:
        text = await answer.text()
    assert 'headrace_gateway_tokens_total{class="completion"} 4.0' in text
    assert 'headrace_gateway_settlements_total{outcome="finished"} 1.0' in text
    assert "ten_" not in text
    assert "key_" not in text


async def test_metrics_tell_each_models_goodput_and_how_far_the_ledger_is(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    assert (await chat(client))[0] == 200
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    for kind in ("requests", "good_requests"):
        assert f'headrace_gateway_model_{kind}_total{{model="{model_name}"}} 1.0' in lines
    figures = ("unposted_records", "oldest_unposted_seconds", "journal_bytes")
    for figure in figures:
        assert any(line.startswith(f"headrace_gateway_{figure} ") for line in lines)
    assert not any(line.startswith("headrace_gateway_certificate_expiry") for line in lines)


async def test_readiness_ends_when_draining_begins(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    async with client.get("/readyz") as answer:
        assert (await answer.json())["state"] == "ready"
    site.gateway.app.drain()
    async with client.get("/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["state"] == "draining"
    assert (await chat(client))[0] == 200
