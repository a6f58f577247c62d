"""Two regions: each gateway prefers its own, and a region that is lost costs no request."""

from pathlib import Path

import aiohttp
import pytest

from headrace.base.errors import Unavailable
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

regions = ("eu", "us", "eu", "us")
requests_count = 8


async def ask(site: GatewaySite) -> list[int]:
    """The statuses of some requests, one after the other."""
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {site.api_key}"}
    statuses = []
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        for _ in range(requests_count):
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
