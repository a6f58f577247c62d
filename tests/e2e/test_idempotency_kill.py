"""`Idempotency-Key` over two gateway processes and one PostgreSQL, where one dies by SIGKILL.

Whatever a client does that got no answer, it is charged for one: it asks the other gateway, or the
killed one after its restart, with the same key.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from headrace.ledger.reservation import Outcome
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_processes import GatewayProcesses
from headrace.sim.gateway_site import model_name, serving
from headrace.sim.listening_process import Process

pytestmark = pytest.mark.e2e
tokens = 6
pairs = 10


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(default=Behaviour(tokens=tokens))


@pytest.fixture
async def site(
    tmp_path: Path, new_postgres_url: Callable[[], str], engine: FakeEngine
) -> AsyncIterator[GatewayProcesses]:
    async with (
        serving(engine) as engine_url,
        GatewayProcesses(tmp_path, new_postgres_url(), engine_url) as site,
    ):
        yield site


async def ask(
    site: GatewayProcesses, gateway: Process, key: str, *, stream: bool = False
) -> tuple[int, bytes, str]:
    """Status, body and request id of a chat."""
    message = {"role": "user", "content": "hi"}
    body = {"model": model_name, "messages": [message], "stream": stream}
    headers = {"authorization": f"Bearer {site.api_key}", "idempotency-key": key}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        return answer.status, await answer.read(), answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_in_the_middle_one_retry_runs_and_is_charged(
    site: GatewayProcesses, engine: FakeEngine, stream: bool
) -> None:
    first, second = site.gateways
    engine.plan.append(Behaviour(tokens=tokens, gate=asyncio.Event()))
    lost = asyncio.create_task(ask(site, first, "k", stream=stream))
    seen = await engine.wait_for(1)
    await asyncio.to_thread(first.end, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await lost
    await seen.ended.wait()

    status, said, _ = await ask(site, second, "k", stream=stream)
    assert (status, len(engine.seen)) == (409, 1), said  # it may have ended well, unseen

    await site.start(first)
    status, said, answered = await ask(site, second, "k", stream=stream)
    assert status == 200, said
    status, said, _ = await ask(site, first, "k", stream=stream)
    assert (status, len(engine.seen)) == (409, 2), said
    assert answered.encode() in said

    booked = await site.booked()
    whole = booked.pop(answered)
    assert (whole.outcome, whole.tokens) == (Outcome.FINISHED, (seen.prompt_tokens, tokens))
    (broken,) = booked.values()  # at what the engine had done when it was cut
    assert (broken.outcome, broken.tokens) == (Outcome.FAILED, (seen.prompt_tokens, 0))


async def test_killed_after_the_answer_a_retry_is_told_what_it_was_charged_as(
    site: GatewayProcesses,
) -> None:
    first, second = site.gateways
    status, _, answered = await ask(site, first, "k")
    assert status == 200
    await asyncio.to_thread(first.end, signal.SIGKILL)
    status, said, _ = await ask(site, second, "k")
    assert status == 409
    assert answered.encode() in said
    await site.start(first)
    assert (await ask(site, first, "k"))[0] == 409
    assert list(await site.booked()) == [answered]


async def test_sent_to_both_at_once_one_runs(site: GatewayProcesses, engine: FakeEngine) -> None:
    for number in range(pairs):
        asks = (ask(site, gateway, f"k{number}") for gateway in site.gateways)
        assert sorted([status for status, _, _ in await asyncio.gather(*asks)]) == [200, 409]
    assert len(await site.booked()) == len(engine.seen) == pairs
