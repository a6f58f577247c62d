"""Every replica is full: who waits, who is refused, and what is left of it afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.gateway import load_follower, waiting_room
from headrace.http.client import HttpClient
from headrace.ledger.reservation import Outcome
from headrace.router.capacity import standing_s
from headrace.sim.clock import ManualClock
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    add_caller,
    gateway_site,
    make_id,
    model_name,
)
from headrace.spec.priority import Priority
from headrace.spec.tenancy import Tenant

Answer = tuple[int, bytes, dict[str, str]]


@asynccontextmanager
async def full_site(
    directory: Path, places: int = 1
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession, asyncio.Event]]:
    """A gateway whose only engine takes `places` requests, and answers once the gate is open."""
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    async with gateway_site(directory, [engine]) as site:
        site.limit_places(places)
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client, gate


async def chat(client: aiohttp.ClientSession, word: str, priority: str = "", **f: Any) -> Answer:
    body = {"model": model_name, "messages": [{"role": "user", "content": word}], **f}
    headers = {"X-Headrace-Priority": priority} if priority else {}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.read(), dict(answer.headers)


async def metric(client: aiohttp.ClientSession, name: str) -> float:
    async with client.get("/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


async def until_waiting(client: aiohttp.ClientSession, count: int) -> None:
    while await metric(client, "headrace_gateway_waiting_requests") != count:
        pass


async def test_requests_beyond_the_places_wait_in_the_gateway_and_are_all_answered(
    tmp_path: Path,
) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        tasks = [asyncio.create_task(chat(client, f"w{n}", stream=n % 2 == 1)) for n in range(6)]
        await site.engines[0].wait_for(1)
        await until_waiting(client, 5)
        assert len(site.engines[0].seen) == 1
        gate.set()
        answers = await asyncio.gather(*tasks)
        settlements = await site.settlements(6)
        assert await metric(client, "headrace_gateway_waiting_requests") == 0
        assert await metric(client, "headrace_gateway_queue_wait_seconds_count") == 5
    assert [status for status, _, _ in answers] == [200] * 6
    assert {settlement.outcome for settlement in settlements} == {Outcome.FINISHED}


async def test_the_priority_header_decides_who_goes_first(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        tasks = [asyncio.create_task(chat(client, "first"))]
        await site.engines[0].wait_for(1)
        for count, word in enumerate(("batch", "standard", "interactive"), start=1):
            tasks.append(asyncio.create_task(chat(client, word, word)))
            await until_waiting(client, count)
        gate.set()
        await asyncio.gather(*tasks)
        order = [seen.body for seen in site.engines[0].seen[1:]]
    assert [b'"interactive"' in order[0], b'"standard"' in order[1], b'"batch"' in order[2]] == [
        True
    ] * 3


async def test_a_tenant_gets_no_higher_class_than_its_own(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        tenant = site.database.store.get(Tenant, make_id("ten", 1))
        site.database.store.update(
            Tenant(
                id=tenant.id,
                name=tenant.name,
                create_time=tenant.create_time,
                version=tenant.version,
                priority_highest=Priority.BATCH,
            )
        )
        await site.gateway.follower.load()
        tasks = [asyncio.create_task(chat(client, "first"))]
        await site.engines[0].wait_for(1)
        for count, word in enumerate(("standard", "interactive"), start=1):
            tasks.append(asyncio.create_task(chat(client, word, word)))
            await until_waiting(client, count)
        gate.set()
        await asyncio.gather(*tasks)
        order = [seen.body for seen in site.engines[0].seen[1:]]
    assert b'"standard"' in order[0]
    assert b'"interactive"' in order[1]


async def test_who_declares_more_than_it_uses_gets_the_difference_back(tmp_path: Path) -> None:
    """Both get answers of 1,000 tokens; `boastful` allows three times as many."""
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate, tokens=1000))
    async with gateway_site(tmp_path, [engine]) as site:
        site.limit_places(1)
        keys = {"plain": site.api_key, "boastful": add_caller(site.database, number=2)}
        await site.gateway.follower.load()
        async with aiohttp.ClientSession(site.url) as client:

            async def ask(word: str, max_tokens: int) -> int:
                headers = {"Authorization": f"Bearer {keys[word]}"}
                messages = [{"role": "user", "content": word}]
                body = {"model": model_name, "messages": messages, "max_tokens": max_tokens}
                async with client.post(
                    "/v1/chat/completions", json=body, headers=headers
                ) as answer:
                    await answer.read()
                    return answer.status

            tasks = [asyncio.create_task(ask("plain", 1000))]
            await engine.wait_for(1)
            asked = [("plain", 1000)] * 12 + [("boastful", 3000)] * 4
            for count, each in enumerate(asked, start=1):
                tasks.append(asyncio.create_task(ask(*each)))
                await until_waiting(client, count)
            gate.set()
            assert set(await asyncio.gather(*tasks)) == {200}
    order = ["boastful" if b"boastful" in seen.body else "plain" for seen in engine.seen[1:]]
    first = order.index("boastful")
    between = order[first : first + 7].count("boastful")
    assert between == 4, order  # in turn from the second on; charged as declared it would be two


async def test_an_unknown_class_is_400(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (_, client, _):
        status, body, _ = await chat(client, "x", "urgent")
    assert status == 400
    assert b"interactive, standard, batch" in body


async def test_who_leaves_the_queue_frees_its_place_and_pays_nothing(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        first = asyncio.create_task(chat(client, "first"))
        await site.engines[0].wait_for(1)
        leaving = asyncio.create_task(chat(client, "leaving", stream=True))
        await until_waiting(client, 1)
        leaving.cancel()
        await until_waiting(client, 0)
        (settlement,) = await site.settlements(1)
        gate.set()
        await first
        assert len(site.engines[0].seen) == 1
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.usage.completion_tokens == settlement.usage.prompt_tokens == 0


async def test_a_turn_that_does_not_come_in_time_is_503_with_the_time_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(waiting_room.wait_s_max, Priority.STANDARD, 0.05)
    async with full_site(tmp_path) as (site, client, gate):
        first = asyncio.create_task(chat(client, "first"))
        await site.engines[0].wait_for(1)
        status, body, headers = await chat(client, "late")
        gate.set()
        await first
        settlements = await site.settlements(2)
    assert status == 503, body
    assert 1 <= int(headers["Retry-After"]) <= waiting_room.retry_after_s_max
    assert sorted(settlement.outcome for settlement in settlements) == ["failed", "finished"]


async def test_a_full_queue_is_429_with_the_time_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        monkeypatch.setattr(site.gateway.room, "_requests_max", 2)
        tasks = [asyncio.create_task(chat(client, f"w{n}")) for n in range(3)]
        await until_waiting(client, 2)
        status, body, headers = await chat(client, "too many")
        refused = 'headrace_gateway_saturated_refusals_total{priority="standard"}'
        assert await metric(client, refused) == 1
        gate.set()
        assert [answer[0] for answer in await asyncio.gather(*tasks)] == [200] * 3
    assert status == 429, body
    assert int(headers["Retry-After"]) >= 1


async def test_the_last_replicas_end_fails_those_that_wait(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, client, gate):
        first = asyncio.create_task(chat(client, "first"))
        await site.engines[0].wait_for(1)
        waiting = asyncio.create_task(chat(client, "waiting"))
        await until_waiting(client, 1)
        site.gateway.endpoints.update([])
        assert (await waiting)[0] == 503
        gate.set()
        assert (await first)[0] == 200


async def test_the_limit_is_learnt_from_what_waits_inside_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody asks but this test: a report of a moment in which only some had arrived says otherwise.
    for name in ("poll_interval_s", "saturated_poll_interval_s"):
        monkeypatch.setattr(load_follower, name, 3600.0)
    monkeypatch.setitem(waiting_room.wait_s_max, Priority.STANDARD, 3600.0)
    monkeypatch.setattr(HttpClient.__init__, "__kwdefaults__", {"connect_timeout_s": 3600.0})
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    engine.places = 8
    async with gateway_site(tmp_path, [engine]) as site:
        (endpoint,) = site.gateway.endpoints
        endpoint.capacity.requests_max = 32  # so few that their prompts are soon computed
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            tasks = [asyncio.create_task(chat(client, f"w{n}")) for n in range(60)]
            await engine.wait_for(32)
            assert endpoint.in_flight_requests == 32
            clock = ManualClock()
            monkeypatch.setattr(site.gateway.loads, "_clock", clock)
            await site.gateway.loads.ask_all()
            assert endpoint.capacity.requests_max == 32  # it may be a burst
            clock.advance(standing_s)
            await site.gateway.loads.ask_all()
            assert endpoint.capacity.requests_max == 9  # eight run, and one waits for their places
            gate.set()
            answers = await asyncio.gather(*tasks)
    assert [status for status, _, _ in answers] == [200] * 60


async def test_batch_work_leaves_room_so_that_nobody_interactive_waits_for_it(
    tmp_path: Path,
) -> None:
    async with full_site(tmp_path, places=8) as (site, client, gate):
        engine = site.engines[0]
        batch = [asyncio.create_task(chat(client, f"b{n}", "batch")) for n in range(20)]
        await engine.wait_for(7)
        await until_waiting(client, 13)
        urgent = asyncio.create_task(chat(client, "now", "interactive", stream=True))
        await engine.wait_for(8)  # at once, though thirteen others wait
        assert b'"now"' in engine.seen[7].body
        assert await metric(client, "headrace_gateway_waiting_requests") == 13
        gate.set()
        answers = await asyncio.gather(urgent, *batch)
    assert {status for status, _, _ in answers} == {200}
