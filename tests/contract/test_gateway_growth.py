"""A request leaves nothing behind in the gateway's memory once it is settled and shipped."""

import functools
import gc
import itertools
from pathlib import Path

import aiohttp
import pytest

from headrace.gateway import routing
from headrace.router.decision_log import DecisionLog
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

round_requests = 200
# Of a leak there is an object a request at least; what comes and goes with the journal's files,
# the event loop and the collector's own moments is far less.
kept_objects_max = round_requests // 4


async def one_round(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    """Requests of every kind: whole, streamed, refused by the engine, broken off, left, unknown."""
    engine = site.engines[0]
    for number in range(round_requests):
        match number % 5:
            case 1:
                engine.plan.append(Behaviour(failure=Failure.STATUS, status=400))
            case 2:
                engine.plan.append(Behaviour(failure=Failure.ERROR_EVENT, fail_after=1))
            case 3:
                engine.plan.append(Behaviour(tokens=9, failure=Failure.HANG, fail_after=1))
        body = {
            "model": model_name,
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": number % 5 != 0,
        }
        headers = {"X-Request-Id": f"a caller's own {number}"}
        async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
            if number % 5 == 3:
                await answer.content.readany()
            else:
                await answer.read()
        async with client.get(f"/v1/nothing/{number}") as answer:
            assert answer.status == 404


async def objects_after(site: GatewaySite, client: aiohttp.ClientSession, rounds: int) -> int:
    """How many there are once all was settled, booked and collected."""
    await one_round(site, client)
    await site.booked(rounds * round_requests)
    while site.journal.status().running_requests or site.gateway.room.waiting_count():
        await client.get("/livez")
    site.gateway.access_log.flush()
    gc.collect()
    return len(gc.get_objects())


async def test_requests_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is kept of the newest requests, so that routes can be explained, is full at once.
    monkeypatch.setattr(routing, "DecisionLog", functools.partial(DecisionLog, 8))
    engine = FakeEngine(remembers=False)
    async with gateway_site(tmp_path, [engine]) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            counts = [await objects_after(site, client, rounds) for rounds in range(1, 5)]
    growth = [later - earlier for earlier, later in itertools.pairwise(counts)]
    assert min(growth) < kept_objects_max, counts
