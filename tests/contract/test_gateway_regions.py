"""Two regions: each gateway prefers its own; a full or lost one costs no request."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from headrace.base.errors import Unavailable
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

regions = ("eu", "us", "eu", "us")
requests_count = 8


async def ask(site: GatewaySite, count: int = requests_count) -> list[int]:
    """The statuses of some requests, one after the other."""
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {site.api_key}"}
    statuses = []
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        for _ in range(count):
            async with client.post("/v1/chat/completions", json=body) as answer:
                statuses.append(answer.status)
    return statuses


def seen(engines: list[FakeEngine], region: str) -> int:
    """Requests that reached a region."""
    return sum(
        len(engine.seen) for engine, where in zip(engines, regions, strict=True) if where == region
    )


@pytest.mark.parametrize(("own", "other"), [("eu", "us"), ("us", "eu")])
async def test_a_gateway_prefers_its_region_and_outlives_its_loss(
    tmp_path: Path, own: str, other: str
) -> None:
    engines = [FakeEngine() for _ in regions]
    async with gateway_site(tmp_path, engines, region=own, regions=regions) as site:
        assert await ask(site) == [200] * requests_count
        assert (seen(engines, own), seen(engines, other)) == (requests_count, 0)
        lost = Behaviour(failure=Failure.STATUS, error=Unavailable("the region is gone"))
        for engine, where in zip(engines, regions, strict=True):
            if where == own:
                engine.default = lost
        assert await ask(site) == [200] * requests_count
    assert seen(engines, other) == requests_count


async def test_a_full_region_spills_over_until_it_has_room_again(tmp_path: Path) -> None:
    gate = asyncio.Event()
    held = Behaviour(gate=gate)
    engines = [FakeEngine(default=held if where == "eu" else None) for where in regions]
    async with gateway_site(tmp_path, engines, region="eu", regions=regions) as site:
        site.limit_places(1)
        waiting = [asyncio.create_task(ask(site, 1)) for _ in range(2)]
        for engine, where in zip(engines, regions, strict=True):
            if where == "eu":
                await engine.wait_for(1)
        assert await ask(site) == [200] * requests_count
        assert (seen(engines, "eu"), seen(engines, "us")) == (2, requests_count)
        gate.set()
        assert await asyncio.gather(*waiting) == [[200], [200]]
        assert await ask(site) == [200] * requests_count
    assert (seen(engines, "eu"), seen(engines, "us")) == (2 + requests_count, requests_count)
