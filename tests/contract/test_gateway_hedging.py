"""A request at two replicas: the first byte wins, the loser stops, one bill, one cost record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.gateway import hedging
from headrace.ledger.reservation import Outcome, Settlement, TokenUsage, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name
from headrace.spec.deployments import Deployment
from headrace.spec.hedging import Hedging
from headrace.spec.settlements import platform_tenant_id
from headrace.spec.tenancy import Project

messages = [{"role": "user", "content": "Hello there"}]
at_once = Hedging(after_s=0.0)
Answer = tuple[int, bytes, str | None]


@asynccontextmanager
async def hedged(
    directory: Path, engines: list[FakeEngine], policy: Hedging = at_once
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    """A gateway whose deployment is hedged."""
    async with gateway_site(directory, engines) as site:
        store = site.database.store
        store.update(replace(store.get(Deployment, make_id("dep", 1)), hedging=policy))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client


async def chat(client: aiohttp.ClientSession, *, key: str | None = None, **fields: Any) -> Answer:
    body = {"model": model_name, "messages": messages, **fields}
    headers = {} if key is None else {"Idempotency-Key": key}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        said = await answer.read()
        late = said.partition(b": x-headrace-hedge: ")[2].partition(b"\n")[0].decode()
        return answer.status, said, answer.headers.get("x-headrace-hedge") or late or None


def split(settlements: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """The callers' and the platform's."""
    own = [one for one in settlements if one.tenant_id == platform_tenant_id]
    return [one for one in settlements if one.tenant_id != platform_tenant_id], own


def slow_engines(**behaviour: Any) -> list[FakeEngine]:
    """Two that answer once `release` lets them."""
    return [FakeEngine(default=Behaviour(gate=asyncio.Event(), **behaviour)) for _ in range(2)]


def release(engine: FakeEngine) -> None:
    """Let an engine's answers begin."""
    assert engine.default.gate is not None
    engine.default.gate.set()


async def arrivals(engines: list[FakeEngine]) -> list[FakeEngine]:
    """The engines in the order in which they were asked, once both were."""
    await asyncio.gather(*(engine.wait_for(1) for engine in engines))
    return sorted(engines, key=lambda engine: engine.seen[0].request_id)


async def test_the_second_answers_for_a_slow_first_which_stops_and_nobody_pays_for(
    tmp_path: Path,
) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        first, second = await arrivals(engines)
        release(second)
        status, body, result = await task
        await first.seen[0].ended.wait()
        [[billed], [borne]] = split(await site.settlements(2))
        metrics = await (await client.get("/metrics")).text()
    assert (status, result) == (200, "won")
    assert b" t3" in body
    assert billed.outcome is Outcome.FINISHED
    assert billed.usage == TokenUsage(second.seen[0].prompt_tokens, 0, 4)
    assert borne.request_id == f"{billed.request_id}.hedge"
    assert (borne.outcome, borne.source) == (Outcome.ABORTED, UsageSource.ENGINE)
    assert borne.usage == TokenUsage(first.seen[0].prompt_tokens, 0, 0)
    assert borne.amount_nanousd == 0
    assert borne.replica_id not in (None, billed.replica_id)
    assert 'headrace_gateway_hedges_total{result="won"} 1' in metrics
    assert f"headrace_gateway_hedge_lost_tokens_total {borne.usage.prompt_tokens}" in metrics


async def test_the_first_may_still_win_and_the_second_stops(tmp_path: Path) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        first, second = await arrivals(engines)
        release(first)
        status, _, result = await task
        await second.seen[0].ended.wait()
        [[billed], [borne]] = split(await site.settlements(2))
    assert (status, result) == (200, "lost")
    assert billed.usage.prompt_tokens == first.seen[0].prompt_tokens
    assert billed.usage.completion_tokens == 4
    assert borne.usage.completion_tokens == 0


async def test_a_quick_first_byte_asks_nobody_else(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    async with hedged(tmp_path, engines, Hedging(after_s=600.0)) as (site, client):
        status, _, result = await chat(client, stream=True)
        settlements = await site.settlements(1)
    assert (status, result) == (200, None)
    assert len(engines[0].seen) + len(engines[1].seen) == len(settlements) == 1


async def test_an_unstreamed_answer_is_raced_by_what_such_answers_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "first_outputs_min", 1)
    engines = [FakeEngine(), FakeEngine()]
    policy = Hedging(after_s=0.0, first_output_quantile=0.5)
    async with hedged(tmp_path, engines, policy) as (site, client):
        _, _, none = await chat(client)
        for engine in engines:
            engine.seen.clear()
            engine.default = Behaviour(gate=asyncio.Event())
        task = asyncio.create_task(chat(client))
        _, second = await arrivals(engines)
        release(second)
        status, _, result = await task
        billed, borne = split(await site.settlements(3))
    assert (none, status, result) == (None, 200, "won")
    assert [one.usage.completion_tokens for one in billed] == [4, 4]
    assert len(borne) == 1


async def test_one_of_the_two_that_breaks_leaves_the_other_to_answer(tmp_path: Path) -> None:
    broken, whole = slow_engines(failure=Failure.CUT)[0], slow_engines()[0]
    async with hedged(tmp_path, [broken, whole]) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        first, _ = await arrivals([broken, whole])
        release(broken)
        await broken.seen[0].ended.wait()
        release(whole)
        status, _, result = await task
        [[billed], [borne]] = split(await site.settlements(2))
    assert (status, result) == (200, "won" if first is broken else "lost")
    assert (billed.outcome, billed.usage.completion_tokens) == (Outcome.FINISHED, 4)
    assert borne.amount_nanousd == 0


async def test_when_both_break_each_is_settled_once_and_nobody_pays(tmp_path: Path) -> None:
    engines = slow_engines(failure=Failure.CUT)
    async with hedged(tmp_path, engines) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        for engine in await arrivals(engines):
            release(engine)
        status, said, _ = await task
        [[billed], [borne]] = split(await site.settlements(2))
    assert (status, b"upstream_failed" in said) == (200, True)  # its headers were out
    assert (billed.outcome, borne.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert (billed.usage.completion_tokens, borne.amount_nanousd) == (0, 0)


async def test_a_caller_who_leaves_stops_both(tmp_path: Path) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        first, second = await arrivals(engines)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(first.seen[0].ended.wait(), second.seen[0].ended.wait())
        [[billed], [borne]] = split(await site.settlements(2))
        loads = [endpoint.in_flight_requests for endpoint in site.gateway.endpoints]
    assert billed.outcome is Outcome.ABORTED
    assert billed.usage == TokenUsage(first.seen[0].prompt_tokens, 0, 0)
    assert borne.outcome is Outcome.ABORTED
    assert loads == [0, 0]


async def test_who_won_is_said_in_a_comment_where_the_headers_went_before(tmp_path: Path) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        body = {"model": model_name, "messages": messages, "stream": True}
        async with client.post("/v1/chat/completions", json=body) as answer:
            assert "x-headrace-hedge" not in answer.headers
            first, second = await arrivals(engines)
            release(second)
            said = await answer.read()
        await site.settlements(2)
    comment, event = said.index(b": x-headrace-hedge: won\n\n"), said.index(b"data: ")
    assert comment < event
    assert said.count(b"x-headrace-hedge") == 1
    assert first is not second


async def test_a_spent_retry_budget_asks_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        refused = asyncio.Event()
        monkeypatch.setattr(site.gateway.retries, "withdraw", lambda _: refused.set())
        task = asyncio.create_task(chat(client, stream=True))
        await refused.wait()
        for engine in engines:
            release(engine)
        status, _, result = await task
        settlements = await site.settlements(1)
    assert (status, result, len(settlements)) == (200, None, 1)


async def test_a_single_replica_is_not_asked_twice(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with hedged(tmp_path, [engine]) as (site, client):
        status, _, result = await chat(client, stream=True)
        settlements = await site.settlements(1)
    assert (status, result, len(engine.seen), len(settlements)) == (200, None, 1, 1)


async def test_hedged_retried_joined_replayed_and_cached_are_one_charge(tmp_path: Path) -> None:
    engines = [*slow_engines(failure=Failure.CUT), *slow_engines(failure=Failure.CUT)[:1]]
    async with hedged(tmp_path, engines) as (site, client):
        store = site.database.store
        store.update(replace(store.get(Project, make_id("prj", 1)), caches_answers=True))
        await site.gateway.follower.load()
        joined = [asyncio.create_task(chat(client, key="k", stream=True)) for _ in range(2)]
        while sum(len(engine.seen) for engine in engines) < 2:
            await client.get("/livez")
        for engine in engines:
            if engine.seen:
                release(engine)  # and break
            else:
                engine.default = Behaviour()
        answers = [await each for each in joined]
        answers.append(await chat(client, key="k", stream=True))
        asked = sum(len(engine.seen) for engine in engines)
        for engine in engines:
            engine.default = Behaviour()
        fresh, cached = [await chat(client, stream=True) for _ in range(2)]
        billed, borne = split(await site.settlements(3))
    assert {status for status, _, _ in answers} == {200}
    assert len({body for _, body, _ in answers}) == 1
    assert asked == 3  # two that broke, and the retry
    assert cached[1] == fresh[1]
    assert [one.usage.completion_tokens for one in billed] == [4, 4]
    assert all(one.amount_nanousd == 0 for one in borne)


async def test_the_book_is_sound_and_shows_the_platforms_share(tmp_path: Path) -> None:
    engines = slow_engines()
    async with hedged(tmp_path, engines) as (site, client):
        task = asyncio.create_task(chat(client, stream=True))
        _, second = await arrivals(engines)
        release(second)
        await task
        await site.settlements(2)
        database = site.database
        await site.booked(2)
        rows = {row.tenant_id: row for row in database.ledger.usage(["tenant"])}
        problems = database.ledger.check()
    assert problems == []
    own = rows.pop(platform_tenant_id)
    [callers] = rows.values()
    assert (own.requests, own.amount_nanousd, own.completion_tokens) == (1, 0, 0)
    assert (callers.requests, callers.completion_tokens) == (1, 4)
