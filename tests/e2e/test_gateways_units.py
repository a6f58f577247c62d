"""Two gateway processes on one budget, for what is priced by image, second and character."""

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import aiohttp
import msgspec
import pytest

from headrace.sim.gateway_processes import GatewayProcesses
from headrace.sim.gateway_site import make_id, model_name, serving
from headrace.sim.media_engine import MediaEngine, sound
from headrace.spec.limits import Limits
from headrace.spec.prices import Price, PriceBook, UnitPrices
from headrace.spec.tenancy import ApiKey
from headrace.storage import open_postgres

pytestmark = pytest.mark.e2e
budget_nanousd = 10**9
clients = 16
least = {"voice": "a", "input": "x"}  # what costs least
by_units = Price(
    input_nanousd_per_million=0,
    cached_input_nanousd_per_million=0,
    output_nanousd_per_million=0,
    units=UnitPrices(
        per_request_nanousd=1_000,
        per_image_nanousd=20_000_000,
        per_second_nanousd=100_000,
        per_character_nanousd=15_000,
    ),
)


def fill(database_url: str) -> None:
    """A budget a day for the key, a price by units for the model."""
    with closing(open_postgres(database_url)) as database:
        store = database.store
        key = store.get(ApiKey, make_id("key", 1))
        store.update(msgspec.structs.replace(key, limits=Limits(budget_nanousd=budget_nanousd)))
        store.create(
            PriceBook(
                id=make_id("prb", 9),
                name="units",
                create_time=1.0,
                effective_time=1.0,
                prices={model_name: by_units},
            )
        )


async def post(
    session: aiohttp.ClientSession, url: str, path: str, fields: Mapping[str, object]
) -> int:
    async with session.post(f"{url}/v1{path}", json={"model": model_name, **fields}) as answer:
        await answer.read()
        return answer.status


async def listen(session: aiohttp.ClientSession, url: str) -> int:
    form = aiohttp.FormData({"model": model_name})
    form.add_field("file", sound, filename="a.mp3")
    async with session.post(f"{url}/v1/audio/transcriptions", data=form) as answer:
        await answer.read()
        return answer.status


async def test_a_budget_that_two_gateways_share_is_used_and_never_overrun(
    tmp_path: Path, new_postgres_url: Callable[[], str]
) -> None:
    database_url = new_postgres_url()
    rng = random.Random(7)
    async with serving(MediaEngine(counts_tokens=False)) as engine_url:
        processes = GatewayProcesses(tmp_path, database_url, engine_url, engine="vllm")
        fill(database_url)
        headers = {"authorization": f"Bearer {processes.api_key}"}
        async with processes as site, aiohttp.ClientSession(headers=headers) as session:
            urls = [gateway.url for gateway in site.gateways]
            statuses: list[int] = []

            async def client() -> None:
                while True:
                    url, kind = rng.choice(urls), rng.randrange(4)
                    if kind == 0:
                        made = {"prompt": "a mill", "n": rng.randint(1, 3)}
                        status = await post(session, url, "/images/generations", made)
                    elif kind == 1:
                        status = await listen(session, url)
                    else:
                        read = {"voice": "a", "input": "x" * rng.randint(1, 500)}
                        status = await post(session, url, "/audio/speech", read)
                    statuses.append(status)
                    if status != 200 and await is_spent(session, urls):
                        return

            await asyncio.gather(*(client() for _ in range(clients)))
            booked = await site.booked()
    assert set(statuses) <= {200, 402, 429}
    spent_nanousd = sum(row.amount_nanousd for row in booked.values())
    assert budget_nanousd * 0.97 <= spent_nanousd <= budget_nanousd


async def is_spent(session: aiohttp.ClientSession, urls: list[str]) -> bool:
    """Whether even the least is refused everywhere, several times."""
    for url in itertools.chain(urls, urls):
        if await post(session, url, "/audio/speech", least) == 200:
            return False
    return True
