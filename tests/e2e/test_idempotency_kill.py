"""`Idempotency-Key` over two gateway processes and one PostgreSQL, where one dies by SIGKILL.

Whatever a client does that got no answer, it gets one and is charged for one: it asks the other
gateway, or the killed one after its restart, with the same key.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from headrace.ledger.rating import nothing_reserved, rate
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_processes import GatewayProcesses
from headrace.sim.gateway_site import model_name, price, serving
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


async def until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    while True:
        await asyncio.sleep(0.01)
        if condition():
            return


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_in_the_middle_who_waits_elsewhere_runs_it_and_one_is_charged(
    site: GatewayProcesses, engine: FakeEngine, stream: bool
) -> None:
    first, second = site.gateways
    behaviour = Behaviour(tokens=tokens, failure=Failure.HANG, fail_after=2 if stream else 0)
    engine.plan.append(behaviour)
    lost = asyncio.create_task(ask(site, first, "k", stream=stream))
    seen = await engine.wait_for(1)
    waiting = asyncio.create_task(ask(site, second, "k", stream=stream))
    if stream:
        await until(lambda: seen.completion_tokens == 2)
    await asyncio.to_thread(first.end, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await lost
    status, said, _ = await waiting
    assert (status, len(engine.seen)) == (200, 2), said
    again = await ask(site, second, "k", stream=stream)
    assert (again[0], len(engine.seen)) == (200, 2)

    await site.start(first)
    status, said, _ = await ask(site, first, "k", stream=stream)
    assert (status, len(engine.seen)) == (200, 2), said
    booked = await site.booked()
    cut, whole = (booked[each.request_id] for each in engine.seen)
    assert (whole.outcome, whole.tokens) == (Outcome.FINISHED, (seen.prompt_tokens, tokens))
    assert (cut.outcome, cut.tokens[0], len(booked)) == (Outcome.FAILED, seen.prompt_tokens, 2)
    assert (cut.amount_nanousd, whole.amount_nanousd) == (0, whole_nanousd(seen.prompt_tokens))


def whole_nanousd(prompt_tokens: int) -> int:
    """What a whole answer costs."""
    used = TokenUsage(prompt_tokens, 0, tokens)
    return rate(price, used, nothing_reserved).amount_nanousd


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_after_the_answer_a_retry_gets_one_and_pays_nothing_for_it(
    site: GatewayProcesses, engine: FakeEngine, stream: bool
) -> None:
    """Whether the answer reached the store before the kill or not."""
    first, second = site.gateways
    status, _, answered = await ask(site, first, "k", stream=stream)
    assert status == 200
    await asyncio.to_thread(first.end, signal.SIGKILL)
    status, said, _ = await ask(site, second, "k", stream=stream)
    assert status == 200, said
    await site.start(first)
    assert (await ask(site, first, "k", stream=stream))[0] == 200
    booked = await site.booked()
    assert {each.outcome for each in booked.values()} == {Outcome.FINISHED}
    charged = [each.amount_nanousd for each in booked.values() if each.amount_nanousd]
    assert charged == [whole_nanousd(engine.seen[0].prompt_tokens)]
    assert answered in booked


async def test_sent_to_both_at_once_one_runs(site: GatewayProcesses, engine: FakeEngine) -> None:
    for number in range(pairs):
        asks = (ask(site, gateway, f"k{number}") for gateway in site.gateways)
        (one, said, _), (other, also_said, _) = await asyncio.gather(*asks)
        assert (one, other, said) == (200, 200, also_said)
    assert len(await site.booked()) == len(engine.seen) == pairs
