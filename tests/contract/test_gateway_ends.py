"""How else a request ends: by another model, at the caller's deadline, refused, by class."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import InvalidRequest
from headrace.ledger.reservation import Outcome
from headrace.protocol.sse import heartbeat
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    add_model,
    gateway_site,
    make_id,
    model_name,
    serving,
)
from headrace.spec.limits import Limits
from headrace.spec.models import Model, ModelVersion

chat_path = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_answers_for_a_model_that_fails_and_both_are_in_the_ledger(
    tmp_path: Path, stream: bool
) -> None:
    spare = FakeEngine()
    broken = FakeEngine(default=Behaviour(failure=Failure.STATUS, status=503))
    async with gateway_site(tmp_path, [broken]) as site, serving(spare) as url:
        add_model(site.database, "spare", [(url, "")], number=2)
        model = site.database.store.list(Model)[0]
        site.database.store.update(with_fallbacks(model, ("nothing", "spare")))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with (
            aiohttp.ClientSession(site.url, headers=headers) as client,
            client.post(chat_path, json=body(stream=stream)) as answer,
        ):
            text = await answer.text()
            assert answer.status == 200
            assert answer.headers["x-headrace-fallback"] == "spare"
            request_id = answer.headers["x-request-id"]
        assert '"model":"spare"' in text
        first, second = await site.settlements(2)
        assert (first.model, first.outcome, first.amount_nanousd) == (
            model_name,
            Outcome.FAILED,
            0,
        )
        assert (second.model, second.outcome) == ("spare", Outcome.FINISHED)
        assert (first.request_id, second.request_id) == (request_id, f"{request_id}.1")


@pytest.mark.parametrize("spare_fails", [False, True])
async def test_a_fallback_answers_in_a_stream_that_has_had_comments_only(
    tmp_path: Path, spare_fails: bool
) -> None:
    gate = asyncio.Event()
    broken = FakeEngine(default=Behaviour(failure=Failure.CUT, gate=gate))
    spare = FakeEngine(default=Behaviour(failure=Failure.STATUS) if spare_fails else Behaviour())
    async with gateway_site(tmp_path, [broken]) as site, serving(spare) as url:
        add_model(site.database, "spare", [(url, "")], number=2)
        model = site.database.store.list(Model)[0]
        site.database.store.update(with_fallbacks(model, ("spare",)))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with (
            aiohttp.ClientSession(site.url, headers=headers) as client,
            client.post(chat_path, json=body(stream=True)) as answer,
        ):
            assert answer.status == 200
            assert await answer.content.readuntil(b"\n\n") == heartbeat
            gate.set()
            said = await answer.text()
        first, second = await site.settlements(2)
    assert ": x-headrace-fallback: spare\n\n" in said or spare_fails
    assert said.endswith("data: [DONE]\n\n") is not spare_fails
    assert ('"error"' in said) is spare_fails
    assert first.outcome is Outcome.FAILED
    assert second.outcome is (Outcome.FAILED if spare_fails else Outcome.FINISHED)


@pytest.mark.parametrize("has_another", [False, True])
@pytest.mark.parametrize("refuses_by", ["limit", "context"])
async def test_a_fallback_that_refuses_a_request_is_passed_over(
    tmp_path: Path, refuses_by: str, has_another: bool
) -> None:
    """Nobody asked for it: its limits and its context are no answer to the request."""
    broken = FakeEngine(default=Behaviour(failure=Failure.STATUS, status=503))
    spare = FakeEngine()
    async with gateway_site(tmp_path, [broken]) as site, serving(spare) as url:
        for number, name in enumerate(("refuses", "spare"), start=2):
            add_model(site.database, name, [(url, "")], number=number)
        model, refusing, _ = site.database.store.list(Model)
        names = ("refuses", "spare") if has_another else ("refuses",)
        site.database.store.update(with_fallbacks(model, names))
        if refuses_by == "limit":
            none = Limits(requests_per_minute=0)
            site.database.store.update(msgspec.structs.replace(refusing, limits=none))
        else:
            version = site.database.store.get(ModelVersion, make_id("ver", 2))
            small = msgspec.structs.replace(version, context_length=16)
            site.database.store.update(small)
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with (
            aiohttp.ClientSession(site.url, headers=headers) as client,
            client.post(chat_path, json=body(max_tokens=20)) as answer,
        ):
            said = await answer.json()
            if has_another:
                assert answer.status == 200
                assert answer.headers["x-headrace-fallback"] == "spare"
            else:
                assert (answer.status, said["error"]["code"]) == (503, "unavailable")
                assert answer.headers["Retry-After"] == "1"
                assert "x-ratelimit-limit-requests" not in answer.headers


async def test_a_fallback_goes_before_a_replica_that_was_ejected(tmp_path: Path) -> None:
    spare, broken = FakeEngine(), FakeEngine()
    async with gateway_site(tmp_path, [broken]) as site, serving(spare) as url:
        add_model(site.database, "spare", [(url, "")], number=2)
        model = site.database.store.list(Model)[0]
        site.database.store.update(with_fallbacks(model, ("spare",)))
        await site.gateway.follower.load()
        for endpoint in site.gateway.endpoints.pool(make_id("ver", 1)):
            endpoint.breaker.fail(SystemClock().monotonic_s() + 100.0, is_probe=False)
            endpoint.follow_health()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with (
            aiohttp.ClientSession(site.url, headers=headers) as client,
            client.post(chat_path, json=body()) as answer,
        ):
            assert answer.status == 200, await answer.text()
            assert answer.headers["x-headrace-fallback"] == "spare"
    assert (len(broken.seen), len(spare.seen)) == (0, 1)


def with_fallbacks(model: Model, fallbacks: tuple[str, ...]) -> Model:
    return msgspec.structs.replace(model, fallbacks=fallbacks)


async def test_what_the_engine_refuses_is_rejected_and_costs_nothing(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    error = InvalidRequest("the prompt is too long")
    site.engines[0].plan.append(Behaviour(failure=Failure.STATUS, status=400, error=error))
    async with client.post(chat_path, json=body()) as answer:
        assert answer.status == 400
    (settlement,) = await site.settlements(1)
    assert (settlement.outcome, settlement.amount_nanousd) == (Outcome.REJECTED, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_callers_deadline_ends_the_request_at_the_engine_too(
    site: GatewaySite, client: aiohttp.ClientSession, stream: bool
) -> None:
    site.engines[0].plan.append(Behaviour(gate=asyncio.Event()))
    headers = {"X-Request-Timeout": "0.2"}
    async with client.post(chat_path, json=body(stream=stream), headers=headers) as answer:
        said = await answer.text()
        assert answer.status == (200 if stream else 504)  # a stream has its headers by then
        assert '"code":"deadline_exceeded"' in said
        assert "[DONE]" not in said
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED
    await site.engines[0].seen[0].ended.wait()


async def test_a_callers_deadline_holds_over_all_models_that_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    broken = FakeEngine(default=Behaviour(failure=Failure.CUT, gate=gate))
    limits_s: list[float] = []
    monotonic_s, timeout = SystemClock.monotonic_s, asyncio.timeout

    def noted(delay_s: float | None) -> asyncio.Timeout:
        limits_s.append(delay_s or 0.0)
        return timeout(delay_s)

    async with gateway_site(tmp_path, [broken]) as site, serving(FakeEngine()) as url:
        add_model(site.database, "spare", [(url, "")], number=2)
        model = site.database.store.list(Model)[0]
        site.database.store.update(with_fallbacks(model, ("spare",)))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}", "X-Request-Timeout": "50000"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            monkeypatch.setattr(asyncio, "timeout", noted)
            asked = asyncio.create_task(client.post(chat_path, json=body()))
            await broken.wait_for(1)
            monkeypatch.setattr(SystemClock, "monotonic_s", lambda clock: monotonic_s(clock) + 9e3)
            gate.set()
            async with await asked as answer:
                assert answer.status == 200
    first_s, second_s = [limit_s for limit_s in limits_s if limit_s > 10_000.0]
    assert second_s <= 41_000.0 < first_s <= 50_000.0


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1e9"])
async def test_a_deadline_that_is_none_is_refused(client: aiohttp.ClientSession, text: str) -> None:
    headers = {"X-Request-Timeout": text}
    async with client.post(chat_path, json=body(), headers=headers) as answer:
        assert answer.status == 400


async def test_a_batch_tier_costs_half_and_the_engine_does_not_see_the_tier(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    for tier in ("default", "flex"):
        async with client.post(chat_path, json=body(service_tier=tier)) as answer:
            assert answer.status == 200, await answer.text()
    settled = await site.settlements(2)
    whole, half = [each.amount_nanousd or 0 for each in settled]
    assert half * 2 == whole > 0
    assert [each.price_percent for each in settled] == [100, 50]
    assert all(b"service_tier" not in seen.body for seen in site.engines[0].seen)


async def test_an_unknown_tier_is_refused(client: aiohttp.ClientSession) -> None:
    async with client.post(chat_path, json=body(service_tier="gold")) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "service_tier")
