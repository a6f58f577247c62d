"""The console's playground is one more client of the gateway: the same keys, limits and aborts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from headrace.console.playground import Playground, SignedIn, prefix
from headrace.http.asgi import Scope
from headrace.http.client import HttpClient
from headrace.ledger.reservation import Outcome
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, serving
from headrace.spec.limits import Limits
from headrace.spec.tenancy import ApiKey

path = f"{prefix}/v1/chat/completions"
body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], "stream": True}


async def anybody(_scope: Scope) -> bool:
    return True


async def nobody(_scope: Scope) -> bool:
    return False


@asynccontextmanager
async def playground(
    directory: Path, engine: FakeEngine, signed_in: SignedIn = anybody
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(gateway_site(directory, [engine]))
        http = HttpClient()
        stack.push_async_callback(http.close)
        app = Playground(site.url, http, signed_in)
        url = await stack.enter_async_context(serving(app))
        headers = {"X-Headrace-Key": site.api_key}
        yield site, await stack.enter_async_context(aiohttp.ClientSession(url, headers=headers))


async def test_it_has_the_limits_of_its_key(tmp_path: Path) -> None:
    async with playground(tmp_path, FakeEngine()) as (site, browser):
        key = site.database.store.get(ApiKey, make_id("key", 1))
        site.database.store.update(replace(key, limits=Limits(tokens_per_period=1)))
        await site.gateway.follower.load()
        async with browser.post(path, json=body) as answer:
            assert answer.status == 429
        assert site.engines[0].seen == []


async def test_it_is_closed_to_who_has_no_key_or_did_not_sign_in(tmp_path: Path) -> None:
    async with playground(tmp_path, FakeEngine(), nobody) as (site, browser):
        async with browser.post(path, json=body) as answer:
            assert answer.status == 401
        wrong = {"X-Headrace-Key": site.api_key[:-1] + "x"}
        async with browser.post(path, json=body, headers=wrong) as answer:
            assert answer.status == 401
        assert site.engines[0].seen == []


async def test_who_closes_the_page_ends_the_request_at_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine(default=Behaviour(gate=asyncio.Event()))
    async with playground(tmp_path, engine) as (site, browser):
        asking = asyncio.create_task(browser.post(path, json=body))
        seen = await engine.wait_for(1)
        await seen.started.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await seen.ended.wait()
        (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED
