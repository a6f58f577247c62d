"""Requests to an engine in two halves, as SGLang is: both asked at once, one answers, one bill."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.adapters.meeting import alone_fields
from headrace.adapters.registry import find_adapter
from headrace.base.clock import SystemClock
from headrace.control.probe import EngineProbe, Question
from headrace.gateway.halves import OtherHalf
from headrace.http.client import HttpClient
from headrace.ledger.reservation import Outcome, Settlement
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, pepper
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.disaggregation import Disaggregation, ReplicaRole

prefill, decode = ReplicaRole.PREFILL, ReplicaRole.DECODE
meeting_names = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


@asynccontextmanager
async def halves(
    directory: Path, roles: Sequence[ReplicaRole], engines: Sequence[FakeEngine]
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    async with gateway_site(directory, engines, engine="sglang") as site:
        store = site.database.store
        deployment = store.get(Deployment, make_id("dep", 1))
        store.update(replace(deployment, disaggregation=Disaggregation()))
        by_id = sorted(store.list(Replica), key=lambda replica: replica.id)
        for replica, role in zip(by_id, roles, strict=True):
            store.update(replace(replica, role=role, peer_port=8998))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": model_name, "messages": messages, "max_tokens": 3, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


def told(engine: FakeEngine, number: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(engine.seen[number].body)
    return body


async def only_bill(site: GatewaySite) -> Settlement:
    (settlement,) = await site.bills(1)
    return settlement


async def until(happened: Callable[[], bool]) -> None:
    while True:
        if happened():
            return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_both_halves_get_the_whole_request_and_one_room(tmp_path: Path, stream: bool) -> None:
    first, second = FakeEngine(), FakeEngine()
    async with halves(tmp_path, [prefill, decode], [first, second]) as (site, client):
        for _ in range(2):
            status, body = await chat(client, stream=stream)
            assert (status, b"t2" in body, b"bootstrap" in body) == (200, True, False)
        settlements = await site.settlements(2)
        rooms = set()
        for number in range(2):
            asked, answered = told(first, number), told(second, number)
            assert {name: asked[name] for name in meeting_names} == {
                name: answered[name] for name in meeting_names
            }
            assert (asked["bootstrap_host"], asked["bootstrap_port"]) == ("127.0.0.1", 8998)
            assert asked["messages"] == answered["messages"]
            assert asked["cache_salt"] == answered["cache_salt"]
            assert asked["stream"] is stream
            rooms.add(asked["bootstrap_room"])
        assert len(rooms) == 2
        assert first.seen[0].request_id != second.seen[0].request_id
        assert [each.usage.completion_tokens for each in settlements] == [3, 3]


async def test_the_answering_half_is_asked_while_the_other_computes(tmp_path: Path) -> None:
    gate = asyncio.Event()
    first, second = FakeEngine(default=Behaviour(gate=gate)), FakeEngine()
    async with halves(tmp_path, [prefill, decode], [first, second]) as (site, client):
        assert (await chat(client))[0] == 200
        gate.set()
        assert (await only_bill(site)).outcome is Outcome.FINISHED


async def test_without_a_half_for_prompts_nothing_is_asked(tmp_path: Path) -> None:
    second = FakeEngine()
    async with halves(tmp_path, [decode], [second]) as (site, client):
        status, body = await chat(client)
        assert (status, b"computes prompts" in body) == (503, True)
        assert second.seen == []
        assert (await only_bill(site)).amount_nanousd == 0


async def test_a_half_for_prompts_never_answers(tmp_path: Path) -> None:
    first = FakeEngine()
    async with halves(tmp_path, [prefill], [first]) as (_, client):
        assert (await chat(client))[0] == 503
        assert first.seen == []


@pytest.mark.parametrize("failure", [Failure.STATUS, Failure.CUT])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_fails_is_computed_at_another_and_the_answer_begun_anew(
    tmp_path: Path, failure: Failure, stream: bool
) -> None:
    gate = asyncio.Event()
    one, other = FakeEngine(), FakeEngine()
    other.plan = one.plan  # whichever is asked first fails
    one.plan.append(Behaviour(failure=failure, status=503))
    second = FakeEngine()
    second.plan.append(Behaviour(gate=gate))  # waits for KV that does not come
    async with halves(tmp_path, [prefill, prefill, decode], [one, other, second]) as (site, client):
        status, body = await chat(client, stream=stream)
        assert (status, b"t2" in body) == (200, True)
        await asyncio.wait_for(second.seen[0].ended.wait(), 60.0)  # its request was ended there
        assert len(one.seen) + len(other.seen) == len(second.seen) == 2
        assert told(second, 0)["bootstrap_room"] != told(second, 1)["bootstrap_room"]
        settlement = await only_bill(site)
        assert (settlement.outcome, settlement.usage.completion_tokens) == (Outcome.FINISHED, 3)


async def test_a_fault_at_the_prompt_ends_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("what nobody foresaw")

    monkeypatch.setattr(OtherHalf, "_compute", fail)
    second = FakeEngine(default=Behaviour(gate=asyncio.Event()))  # waits for KV that does not come
    async with halves(tmp_path, [prefill, decode], [FakeEngine(), second]) as (site, client):
        status, body = await chat(client)
        assert (status, b"its log says why" in body) == (500, True)
        assert (await only_bill(site)).outcome is Outcome.FAILED


async def test_a_prompt_that_fails_everywhere_ends_the_request(tmp_path: Path) -> None:
    gate = asyncio.Event()
    first = FakeEngine(default=Behaviour(failure=Failure.STATUS, status=503))
    second = FakeEngine(default=Behaviour(gate=gate))
    async with halves(tmp_path, [prefill, decode], [first, second]) as (site, client):
        assert (await chat(client))[0] in (502, 503)
        settlement = await only_bill(site)
        assert (settlement.outcome, settlement.amount_nanousd) == (Outcome.FAILED, 0)
        assert all(endpoint.in_flight_requests == 0 for endpoint in site.gateway.endpoints)


async def test_a_caller_that_leaves_ends_both_halves(tmp_path: Path) -> None:
    gate = asyncio.Event()
    first, second = (
        FakeEngine(default=Behaviour(gate=gate)),
        FakeEngine(default=Behaviour(gate=gate)),
    )
    async with halves(tmp_path, [prefill, decode], [first, second]) as (site, client):
        asking = asyncio.create_task(chat(client, stream=True))
        await until(lambda: bool(first.seen and second.seen))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for engine in (first, second):
            await asyncio.wait_for(engine.seen[0].ended.wait(), 60.0)
        await only_bill(site)
        await until(lambda: not any(e.in_flight_requests for e in site.gateway.endpoints))


@pytest.mark.parametrize("role", [prefill, decode, ReplicaRole.WHOLE])
async def test_a_half_is_probed_as_one_that_moves_no_kv(tmp_path: Path, role: ReplicaRole) -> None:
    engine = FakeEngine()
    async with halves(tmp_path, [role], [engine]) as (site, _):
        (replica,) = site.database.store.list(Replica)
        client = HttpClient()
        probe = EngineProbe(client, SystemClock(), pepper)
        assert await probe.answers(find_adapter("sglang"), replica, Question.TOKEN)
        await client.close()
        found = {name: told(engine).get(name) for name in alone_fields()}
        nothing = dict.fromkeys(alone_fields())
        assert found == (nothing if role is ReplicaRole.WHOLE else alone_fields())
