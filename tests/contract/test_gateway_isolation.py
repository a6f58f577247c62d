"""An engine that hangs holds up its own requests and nobody else's."""

import asyncio
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import add_model, gateway_site, make_id, model_name, price, serving
from headrace.spec.prices import PriceBook

hung_count = 60
answered_count = 60


async def test_a_hung_engine_takes_nothing_from_another_models(tmp_path: Path) -> None:
    never = asyncio.Event()
    hung, other = FakeEngine(default=Behaviour(gate=never)), FakeEngine()
    async with serving(other) as url, gateway_site(tmp_path, [hung]) as site:
        add_model(site.database, "other", [(url, "")], number=2)
        site.database.store.create(
            PriceBook(
                id=make_id("prb", 9),
                name="both",
                create_time=1.0,
                effective_time=1.0,
                prices={model_name: price, "other": replace(price)},
            )
        )
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(site.url, headers=headers, connector=connector) as client:

            async def ask(model: str, number: int) -> int:
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": f"hi {number}"}],
                    "stream": number % 2 == 0,
                }
                async with client.post("/v1/chat/completions", json=body) as answer:
                    await answer.read()
                    return answer.status

            waiting = [asyncio.create_task(ask(model_name, n)) for n in range(hung_count)]
            await hung.wait_for(1)
            answers = await asyncio.gather(*(ask("other", n) for n in range(answered_count)))
            assert answers == [200] * answered_count
            assert not any(task.done() for task in waiting)
            never.set()
            assert await asyncio.gather(*waiting) == [200] * hung_count
