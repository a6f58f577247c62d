"""A request that ends early, in each phase and for each cause: settled once, all of it given back.

phase            the caller leaves   the caller's deadline   the engine dies (in failures, ends)
queued           nothing is used     504                     waits on, or 503
before a byte    the prompt counts   504                     another replica is asked
in mid-stream    what was made       an error event          an error event, what was made
unstreamed       the prompt counts   504                     another replica is asked
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from headrace.ledger.reservation import Outcome, Settlement, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

chat_path = "/v1/chat/completions"
limits_s = {"mid-stream": "1.5"}  # long enough for three tokens on a slow machine


class Phase(NamedTuple):
    """How a request gets there, and what it has used then."""

    name: str
    streams: bool
    completion_tokens: int
    reaches_engine: bool = True


phases = (
    Phase("queued", True, 0, reaches_engine=False),
    Phase("before the first byte", True, 0),
    Phase("mid-stream", True, 3),
    Phase("unstreamed", False, 0),
)


def engine_for(phase: Phase) -> FakeEngine:
    if phase.name == "mid-stream":
        return FakeEngine(default=Behaviour(tokens=9, failure=Failure.HANG, fail_after=3))
    return FakeEngine(default=Behaviour(gate=asyncio.Event()))


@asynccontextmanager
async def site_in(
    directory: Path, phase: Phase
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    """A gateway; where the phase is the queue, its only place is taken."""
    async with gateway_site(directory, [engine_for(phase)]) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            blocker = None
            if not phase.reaches_engine:
                site.limit_places(1)
                blocker = asyncio.create_task(ask(client, stream=False))
                await site.engines[0].wait_for(1)
            yield site, client
            gate = site.engines[0].default.gate
            if blocker is not None and gate is not None:
                gate.set()
                assert (await blocker)[0] == 200


async def ask(
    client: aiohttp.ClientSession, *, timeout_s: str | None = None, **fields: Any
) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}
    headers = {} if timeout_s is None else {"X-Request-Timeout": timeout_s}
    async with client.post(chat_path, json=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def reached(site: GatewaySite, client: aiohttp.ClientSession, phase: Phase) -> None:
    """Return once the request is in its phase."""
    if not phase.reaches_engine:
        while site.gateway.room.waiting_count() != 1:
            await client.get("/livez")
        return
    seen = await site.engines[0].wait_for(1)
    await seen.started.wait()
    while seen.completion_tokens < phase.completion_tokens:
        await client.get("/livez")


async def check(site: GatewaySite, phase: Phase) -> Settlement:
    """The request's settlement, when everything it had is given back."""
    (settlement,) = await site.settlements(1)
    engine = site.engines[0]
    if phase.reaches_engine:
        await engine.seen[-1].ended.wait()
        prompt_tokens = engine.seen[-1].prompt_tokens
    else:
        prompt_tokens = 0
        assert len(engine.seen) == 1  # what takes the place
    running = 0 if phase.reaches_engine else 1
    assert sum(endpoint.in_flight_requests for endpoint in site.gateway.endpoints) == running
    assert site.journal.status().running_requests == running
    assert site.gateway.room.waiting_count() == 0
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage.prompt_tokens == prompt_tokens
    assert settlement.usage.completion_tokens == phase.completion_tokens
    return settlement


@pytest.mark.parametrize("phase", phases, ids=lambda phase: phase.name)
async def test_a_caller_who_leaves(tmp_path: Path, phase: Phase) -> None:
    async with site_in(tmp_path, phase) as (site, client):
        task = asyncio.create_task(ask(client, stream=phase.streams))
        await reached(site, client, phase)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        settlement = await check(site, phase)
    assert settlement.outcome is Outcome.ABORTED


@pytest.mark.parametrize("phase", phases, ids=lambda phase: phase.name)
async def test_a_callers_deadline(tmp_path: Path, phase: Phase) -> None:
    async with site_in(tmp_path, phase) as (site, client):
        limit_s = limits_s.get(phase.name, "0.3")
        status, body = await ask(client, stream=phase.streams, timeout_s=limit_s)
        settlement = await check(site, phase)
    last = json.loads(body.split(b"data: ")[-1])
    assert last["error"]["code"] == "deadline_exceeded"
    assert status == (200 if phase.streams else 504)  # a stream has its headers by then
    assert settlement.outcome is Outcome.ABORTED
