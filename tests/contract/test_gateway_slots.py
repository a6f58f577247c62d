"""A place of `concurrent_requests` comes back on every way out, at one gateway and at several."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    add_model,
    gateway_site,
    make_id,
    model_name,
    serving,
)
from headrace.sim.redis_server import RedisServer
from headrace.spec.deployments import Deployment
from headrace.spec.hedging import Hedging
from headrace.spec.limits import Limits
from headrace.spec.models import Model
from headrace.spec.tenancy import ApiKey, KeyState, Tenant
from headrace.storage.redis_limits import RedisLimits

chat_path = "/v1/chat/completions"
hangs = Behaviour(tokens=9, failure=Failure.HANG)
hangs_late = Behaviour(tokens=9, failure=Failure.HANG, fail_after=3)


class Caller:
    """One caller, whose tenant may run one request at a time."""

    def __init__(self, site: GatewaySite, client: aiohttp.ClientSession) -> None:
        self.site, self.client = site, client

    @property
    def engine(self) -> FakeEngine:
        return self.site.engines[0]

    async def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, bytes]:
        body = {"model": model_name, "messages": [{"role": "user", "content": "Hi"}], **fields}
        async with self.client.post(chat_path, json=body, headers=headers or {}) as answer:
            return answer.status, await answer.read()

    async def leave(self, asking: asyncio.Task[tuple[int, bytes]]) -> None:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def limit(self, limits: Limits) -> None:
        store = self.site.database.store
        tenant = store.get(Tenant, make_id("ten", 1))
        store.update(msgspec.structs.replace(tenant, limits=limits))
        await self.site.gateway.follower.load()


@asynccontextmanager
async def caller(directory: Path, engines: int = 1, **fields: Any) -> AsyncIterator[Caller]:
    made = [FakeEngine() for _ in range(engines)]
    for each in made:
        each.plan, each.arrived, each.seen = made[0].plan, made[0].arrived, made[0].seen
    async with gateway_site(directory, made, **fields) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            found = Caller(site, client)
            await found.limit(Limits(concurrent_requests=1))
            yield found


async def leaves(caller: Caller, behaviour: Behaviour, **fields: Any) -> None:
    caller.engine.plan.append(behaviour)
    asking = asyncio.create_task(caller.ask(**fields))
    seen = await caller.engine.wait_for(1)
    await until(lambda: seen.completion_tokens == behaviour.fail_after)
    assert (await caller.ask())[0] == 429, "it has the place"
    await caller.leave(asking)


async def leaves_before_a_byte(caller: Caller) -> None:
    await leaves(caller, hangs, stream=True)


async def leaves_a_stream(caller: Caller) -> None:
    await leaves(caller, hangs_late, stream=True)


async def leaves_a_whole_answer(caller: Caller) -> None:
    await leaves(caller, hangs)


async def waits_too_long(caller: Caller) -> None:
    caller.engine.plan.append(hangs)
    assert (await caller.ask({"X-Request-Timeout": "0.2"}))[0] == 504


async def meets_an_engine_that_dies(caller: Caller) -> None:
    caller.engine.plan.append(Behaviour(failure=Failure.CUT, fail_after=2))
    assert b'"error"' in (await caller.ask(stream=True))[1]


async def is_refused_by_the_engine(caller: Caller) -> None:
    caller.engine.plan.append(Behaviour(failure=Failure.STATUS, status=400))
    assert (await caller.ask())[0] == 400


async def asks_for_what_is_no_request(caller: Caller) -> None:
    assert (await caller.ask(messages="none"))[0] == 400


async def is_retried(caller: Caller) -> None:
    caller.engine.plan.append(Behaviour(failure=Failure.CUT))
    assert (await caller.ask())[0] == 200


async def is_answered_by_a_fallback(caller: Caller) -> None:
    caller.engine.plan.append(Behaviour(failure=Failure.STATUS, status=503))
    caller.engine.plan.append(Behaviour(failure=Failure.STATUS, status=503))
    store = caller.site.database.store
    async with serving(FakeEngine()) as url:
        add_model(caller.site.database, "spare", [(url, "")], number=2)
        model = store.get(Model, make_id("mod", 1))
        store.update(msgspec.structs.replace(model, fallbacks=("spare",)))
        await caller.site.gateway.follower.load()
        assert (await caller.ask())[0] == 200
        assert (await caller.ask())[0] == 200


async def is_hedged(caller: Caller) -> None:
    """The slower of two never ends by itself."""
    store = caller.site.database.store
    deployment = store.get(Deployment, make_id("dep", 1))
    store.update(msgspec.structs.replace(deployment, hedging=Hedging(after_s=0.0)))
    await caller.site.gateway.follower.load()
    caller.engine.plan.append(hangs)
    assert (await caller.ask(stream=True))[0] == 200


async def leaves_what_has_a_key(caller: Caller) -> None:
    """It has its place until nobody waited for it long enough."""
    gate = asyncio.Event()
    caller.engine.plan.append(Behaviour(gate=gate))
    asking = asyncio.create_task(caller.ask({"Idempotency-Key": "k"}))
    await caller.engine.wait_for(1)
    await caller.leave(asking)
    assert (await caller.ask())[0] == 429
    gate.set()
    assert (await caller.ask({"Idempotency-Key": "k"}))[0] == 200


ways: list[Callable[[Caller], Awaitable[None]]] = [
    leaves_before_a_byte,
    leaves_a_stream,
    leaves_a_whole_answer,
    waits_too_long,
    meets_an_engine_that_dies,
    is_refused_by_the_engine,
    asks_for_what_is_no_request,
    is_retried,
    is_answered_by_a_fallback,
    is_hedged,
    leaves_what_has_a_key,
]


@pytest.mark.parametrize("way", ways)
async def test_its_place_is_free_afterwards(
    tmp_path: Path, way: Callable[[Caller], Awaitable[None]]
) -> None:
    async with caller(tmp_path, engines=2) as one:
        await way(one)
        await its_place_is_free(one)


@pytest.mark.parametrize("way", ways)
async def test_its_place_is_free_for_every_gateway_afterwards(
    tmp_path: Path, own_redis_server: RedisServer, way: Callable[[Caller], Awaitable[None]]
) -> None:
    with closing(RedisLimits(own_redis_server.url, "7")) as store:
        store.mark()
        async with caller(tmp_path, engines=2, limits=store) as one:
            await way(one)
            await its_place_is_free(one)


async def its_place_is_free(one: Caller) -> None:
    """Once what ended is settled: that may be a moment after its caller left."""
    await until(lambda: one.site.journal.status().running_requests == 0)
    for stream in (False, True):
        assert (await one.ask(stream=stream))[0] == 200


async def test_what_runs_goes_on_whatever_is_changed_meanwhile(tmp_path: Path) -> None:
    """Its key is revoked, its tenant's limits are lowered: it was admitted, ends and is paid."""
    gate = asyncio.Event()
    async with caller(tmp_path) as one:
        one.engine.plan.append(Behaviour(tokens=9, gate=gate, gate_after=3))
        asking = asyncio.create_task(one.ask(stream=True))
        seen = await one.engine.wait_for(1)
        await until(lambda: seen.completion_tokens == 3)
        await one.limit(Limits(concurrent_requests=0, tokens_per_minute=0, budget_nanousd=0))
        assert (await one.ask())[0] in (402, 429)
        store = one.site.database.store
        key = store.get(ApiKey, make_id("key", 1))
        store.update(msgspec.structs.replace(key, state=KeyState.REVOKED))
        await one.site.gateway.follower.load()
        assert (await one.ask())[0] == 401
        gate.set()
        status, said = await asking
        (bill,) = await one.site.bills(1)
    assert (status, said.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert bill.usage.completion_tokens == 9
    assert bill.amount_nanousd


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""
    async with asyncio.timeout(20.0):
        while True:
            await asyncio.sleep(0.005)
            if holds():
                return
