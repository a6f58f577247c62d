"""A gateway over loopback with a fake engine: what clients get, what is settled."""

import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from starlette.types import Message, Receive, Scope, Send

from headrace.base.clock import SystemClock
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.protocol.sse import SseDecoder
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, pepper, serving
from headrace.spec.platform_token import platform_token
from headrace.spec.signals import GatewaySignals
from headrace.storage import open_sqlite

messages = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine(api_key="engine secret")]) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": messages, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


def events(body: bytes) -> list[Any]:
    data = [event.data for event in SseDecoder().feed(body)]
    assert data[-1] == b"[DONE]"
    return [json.loads(item) for item in data[:-1]]


async def test_an_unstreamed_answer_has_the_logical_name_and_is_settled(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    status, body = await chat(client)
    answer = json.loads(body)
    assert status == 200, body
    assert answer["model"] == model_name
    assert answer["choices"][0]["message"]["content"] == " t0 t1 t2 t3"
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.FINISHED
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage == TokenUsage(answer["usage"]["prompt_tokens"], 0, 4)
    assert settlement.request_id == site.engines[0].seen[0].request_id


async def test_a_stream_without_usage_wishes_shows_none_and_is_settled_exactly(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    status, body = await chat(client, stream=True)
    assert status == 200
    chunks = events(body)
    assert all("usage" not in chunk and chunk["model"] == model_name for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)
    (settlement,) = await site.settlements(1)
    assert settlement.usage.completion_tokens == 4
    assert settlement.source is UsageSource.ENGINE


async def test_include_usage_gives_the_last_chunk_and_null_before_it(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    _, body = await chat(client, stream=True, stream_options={"include_usage": True})
    *chunks, last = events(body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


async def test_continuous_usage_is_passed_on_when_asked_for(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, body = await chat(client, stream=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(body)]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_every_event_of_the_engine_reaches_the_client(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    body = {"model": model_name, "messages": messages, "stream": True}
    async with client.post("/v1/chat/completions", json=body) as answer:
        sizes = [data.count(b"data: ") async for data, _ in answer.content.iter_chunks() if data]
    assert sum(sizes) == 7  # opening, four tokens, finish, end marker


async def test_text_completions_pass_too(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    body = {"model": model_name, "prompt": "Once", "stream": True}
    async with client.post("/v1/completions", json=body) as answer:
        chunks = events(await answer.read())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " t0 t1 t2 t3"
    assert json.loads(site.engines[0].seen[0].body)["max_tokens"] == 16


async def test_the_engine_gets_its_own_name_key_and_nothing_of_the_callers(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    headers = {"X-Request-Id": "mine", "Cookie": "a=b", "X-Headrace-Cache-Salt": "stolen"}
    body = {"model": model_name, "messages": messages, "stream": True}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        request_id = answer.headers["X-Request-Id"]
    seen = site.engines[0].seen[0]
    assert seen.request_id == request_id != "mine"
    assert seen.headers["authorization"] == "Bearer engine secret"
    assert "cookie" not in seen.headers
    assert seen.headers["x-headrace-cache-salt"] != "stolen"
    sent = json.loads(seen.body)
    assert sent["model"] == "fake"
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_an_engine_without_usage_is_counted_and_marked_so(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    site.engines[0].plan.append(Behaviour(tokens=3, reports_usage=False))
    site.engines[0]._remembers = False
    await chat(client, stream=True)
    (settlement,) = await site.settlements(1)
    assert settlement.source is UsageSource.COUNTED
    assert settlement.usage.completion_tokens == 5  # opening and finish are chunks too


async def test_usage_reaches_the_ledger_by_the_time_the_gateway_is_down(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            await chat(client)
        (settlement,) = await site.settlements(1)
    with closing(open_sqlite(tmp_path / "headrace.db")) as database:
        (row,) = database.ledger.usage(("model",))
        assert (row.requests, row.completion_tokens) == (1, 4)
        assert row.amount_nanousd == settlement.amount_nanousd
        assert database.ledger.check() == []


async def test_only_streams_tell_the_control_plane_of_the_time_between_tokens(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    for stream in (True, False):
        status, _ = await chat(client, stream=stream)
        assert status == 200
    await site.settlements(2)
    ours = {"Authorization": f"Bearer {platform_token(pepper)}"}
    async with client.get("/internal/signals", headers=ours) as answer:
        signals = msgspec.json.decode(await answer.read(), type=GatewaySignals)
    (generation,) = signals.generations
    assert sum(generation.inter_tokens) == 1
    assert sum(generation.first_tokens) == 1


class SkippingClock(SystemClock):
    """This machine's time, and what was skipped of it."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.skipped_s


async def test_a_slow_reader_is_no_slow_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SkippingClock()
    monkeypatch.setattr("headrace.sim.gateway_site.SystemClock", lambda: clock)
    engine = FakeEngine(default=Behaviour(tokens=100))
    async with gateway_site(tmp_path, [engine]) as site:

        async def held_up(scope: Scope, receive: Receive, send: Send) -> None:
            async def slow_send(message: Message) -> None:
                await send(message)
                clock.skipped_s += 1000.0

            await site.gateway.app(scope, receive, slow_send)

        headers = {"Authorization": f"Bearer {site.api_key}"}
        ours = {"Authorization": f"Bearer {platform_token(pepper)}"}
        async with serving(held_up) as url, aiohttp.ClientSession(headers=headers) as session:
            body = {"model": model_name, "messages": messages, "stream": True}
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert len(events(await answer.read())) > 2
            await site.settlements(1)
            async with session.get(f"{site.url}/internal/signals", headers=ours) as answer:
                signals = msgspec.json.decode(await answer.read(), type=GatewaySignals)
    (generation,) = signals.generations
    assert sum(generation.first_tokens) == 1
    assert not any(generation.inter_tokens[1:])  # the first if all came in one piece
