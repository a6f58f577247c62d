"""What holds for each route that an engine works for, so that no route is the way around it.

The routes are read from the gateway: one that is added and not named here fails the first test.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.gateway.route_table import Access
from headrace.http.asgi import Receive, Scope, Send
from headrace.ledger.reservation import Outcome, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name
from headrace.spec.limits import Limits
from headrace.spec.tenancy import ApiKey, Tenant

messages = [{"role": "user", "content": "hi"}]
bodies: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": messages},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": messages, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": messages},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/tokenize": {"prompt": "hi"},
    "/v1/detokenize": {"tokens": [1]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/v1/audio/speech": {"input": "hi", "voice": "a"},
    "/v1/images/generations": {"prompt": "a mill"},
}
forms = {
    "/v1/audio/transcriptions": "file",
    "/v1/audio/translations": "file",
    "/v1/images/edits": "image",
    "/v1/images/variations": "image",
}
kept = {"/v1/files", "/v1/batches", "/v1/batches/{batch}/cancel"}  # run by others of these
free = {path for path in bodies if "tokens" in path or "tokenize" in path}
streaming: dict[str, tuple[dict[str, Any], bytes]] = {
    "/v1/chat/completions": ({"messages": messages}, b'"content"'),
    "/v1/completions": ({"prompt": "hi"}, b'"text"'),
    "/v1/messages": ({"messages": messages, "max_tokens": 99}, b"text_delta"),
    "/v1/responses": ({"input": "hi"}, b"output_text.delta"),
}
of_the_platform = [
    "api_base", "base_url", "extra_headers", "extra_body", "custom_llm_provider", "chat_template",
    "chat_template_kwargs", "cache_salt", "trust_remote_code", "revision", "lora_request",
    "mm_processor_kwargs", "kv_transfer_params", "priority", "request_id", "vllm_xargs",
    "ref_audio", "url",
]  # fmt: skip


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()], credit_floor_nanousd=None) as running:
        yield running


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def post(client: aiohttp.ClientSession, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a good request with `more` in it."""
    if path in forms:
        form = aiohttp.FormData({"model": model_name})
        form.add_field(forms[path], b"\x89PNG\r\n\x1a\n" + bytes(2_000), filename="a")
        for name, value in more.items():
            form.add_field(name, str(value))
        body: dict[str, Any] = {"data": form}
    else:
        body = {"json": {"model": model_name, **bodies[path], **more}}
    async with client.post(path, **body) as answer:
        try:
            said = json.loads(await answer.read())
        except ValueError:
            said = {}
        return answer.status, said.get("error", {})


def test_every_route_that_an_engine_works_for_is_looked_at(site: GatewaySite) -> None:
    asked = {
        route.name
        for route in site.gateway.app.routes
        if route.method == "POST" and route.access is Access.KEY
    }
    assert asked == set(bodies) | set(forms) | kept


@pytest.mark.parametrize("path", [*bodies, *forms])
async def test_no_route_lets_a_caller_choose_upstreams_templates_code_or_caches(
    site: GatewaySite, client: aiohttp.ClientSession, path: str
) -> None:
    for name in of_the_platform:
        status, error = await post(client, path, **{name: "http://169.254.169.254/"})
        assert (status, error.get("param")) == (400, name), (name, error)
    assert site.engines[0].seen == []


@pytest.mark.parametrize("path", sorted({*bodies, *forms} - free))
async def test_no_route_works_without_credit(tmp_path: Path, path: str) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], credit_floor_nanousd=0) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            status, error = await post(client, path)
    assert (status, error.get("code")) == (402, "insufficient_credit"), error
    assert site.engines[0].seen == []


async def test_no_route_works_beyond_a_limit_of_the_key(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    assert (await post(client, "/v1/chat/completions"))[0] == 200
    store = site.database.store
    key = store.get(ApiKey, make_id("key", 1))
    store.update(replace(key, limits=Limits(requests_per_minute=1)))
    await site.gateway.follower.load()
    for path in (*bodies, *forms):
        status, error = await post(client, path)
        if status != 429:  # the minute of the first one may have just gone by
            status, error = await post(client, path)
        assert (status, error.get("code")) == (429, "rate_limit_exceeded"), (path, error)


async def test_no_route_works_for_a_suspended_tenant(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    store = site.database.store
    store.update(replace(store.get(Tenant, make_id("ten", 1)), active=False))
    await site.gateway.follower.load()
    for path in (*bodies, *forms):
        assert (await post(client, path))[0] == 403, path
    assert site.engines[0].seen == []


class WatchedEngine(FakeEngine):
    """Notes for each request how many the router counts on its endpoint meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.site: GatewaySite | None = None
        self.counted: list[tuple[str, int]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.site is not None and scope["type"] == "http" and scope["method"] == "POST":
            (endpoint,) = self.site.gateway.endpoints
            self.counted.append((scope["path"], endpoint.in_flight_requests))
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("path", [*bodies, *forms])
async def test_each_route_is_load_on_its_replica_until_it_ends(tmp_path: Path, path: str) -> None:
    engine = WatchedEngine()
    async with gateway_site(tmp_path, [engine]) as site:
        engine.site = site
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            await post(client, path)
        assert engine.counted, "the engine was not asked"
        assert engine.counted[-1][1] == 1, engine.counted
        assert [endpoint.in_flight_requests for endpoint in site.gateway.endpoints] == [0]


@pytest.mark.parametrize("path", streaming)
@pytest.mark.parametrize("made", [0, 3])
async def test_whoever_leaves_a_stream_pays_for_what_was_made_by_whichever_api(
    site: GatewaySite, client: aiohttp.ClientSession, path: str, made: int
) -> None:
    engine, (fields, mark) = site.engines[0], streaming[path]
    engine.plan.append(
        Behaviour(tokens=9, failure=Failure.HANG, fail_after=made)
        if made
        else Behaviour(gate=asyncio.Event())
    )
    body = {"model": model_name, **fields, "stream": True}
    left = asyncio.create_task(leave(client, path, body, mark if made else b"\x00"))
    seen = await engine.wait_for(1)
    if made:
        await left
    else:
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    await seen.ended.wait()
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.ENGINE
    usage = settlement.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (seen.prompt_tokens, made)
    assert settlement.amount_nanousd == seen.prompt_tokens * 1_000 + made * 2_000
    assert site.journal.status().running_requests == 0
    assert sum(endpoint.in_flight_requests for endpoint in site.gateway.endpoints) == 0


async def leave(
    client: aiohttp.ClientSession, path: str, body: dict[str, Any], mark: bytes
) -> None:
    """Read a stream until something stands in it for the third time, and close the connection."""
    async with client.post(path, json=body) as answer:
        read = b""
        async for data in answer.content.iter_any():
            read += data
            if read.count(mark) >= 3:
                break
        answer.close()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("/v1/tokenize", {"messages": [{"role": "user", "content": [{"type": "audio_url"}]}]}),
        ("/v1/embeddings", {"input": [{"image": "http://169.254.169.254/"}]}),
        ("/v1/embeddings", {"input": {"content": [{"type": "image_url"}]}}),
        ("/v1/rerank", {"query": {"content": [{"type": "image_url"}]}}),
        ("/v1/rerank", {"documents": [{"text": "a", "image": "http://169.254.169.254/"}]}),
        ("/v1/score", {"text_2": {"content": [{"type": "image_url"}]}}),
        ("/v1/score", {"queries": ["a"] * 9, "items": ["b"] * 9}),  # read, and not reserved for
        ("/v1/audio/speech", {"voice": {"id": "a", "url": "http://169.254.169.254/"}}),
        ("/v1/images/generations", {"quality": {"image": "http://169.254.169.254/"}}),
    ],
)
async def test_no_value_hides_what_an_engine_would_fetch(
    site: GatewaySite, client: aiohttp.ClientSession, path: str, fields: dict[str, Any]
) -> None:
    status, error = await post(client, path, **fields)
    assert status == 400
    assert error["param"] in fields
    assert site.engines[0].seen == []


async def test_images_of_messages_are_for_the_routes_that_guard_them(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    for path in ("/tokenize", "/v1/embeddings"):
        conversation = [{"role": "user", "content": [image]}]
        status, error = await post(client, path, messages=conversation)
        assert (status, error["param"]) == (400, "messages")
    assert site.engines[0].seen == []


@pytest.mark.parametrize("path", forms)
async def test_a_field_is_not_sent_as_a_file(
    site: GatewaySite, client: aiohttp.ClientSession, path: str
) -> None:
    for name in ("response_format", "n", "stream", "url"):
        form = aiohttp.FormData({"model": model_name})
        form.add_field(forms[path], bytes(2_000), filename="a")
        form.add_field(name, "text", filename="b")
        async with client.post(path, data=form) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == name
    assert site.engines[0].seen == []


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_nothing_that_manages_an_engine_is_passed_on(
    site: GatewaySite, client: aiohttp.ClientSession, method: str
) -> None:
    for path in (
        "/update_weights_from_tensor", "/update_weights", "/flush_cache", "/start_profile",
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/sleep", "/wake_up",
        "/slots/0", "/props", "/lora-adapters", "/reset_prefix_cache", "/server_info", "/api/pull",
        "/api/create", "/admin/v1/keys", "/v1/internal/usage/req_1", "/internal/usage/req_1",
        "/config/update", "/generate", "/invocations", "/pooling", "/is_sleeping", "/version",
    ):  # fmt: skip
        async with client.request(method, path, json={"model": model_name}) as answer:
            assert answer.status == 404, path
    assert site.engines[0].seen == []
