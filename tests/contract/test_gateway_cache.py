"""A project that caches answers pays once for the same request; nobody else sees them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name
from headrace.spec.tenancy import ApiKey, Project


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        yield site


async def ask(site: GatewaySite, text: str = "Hello", **fields: Any) -> tuple[int, str | None]:
    """The status, and what the answer says of having been made before."""
    messages = [{"role": "user", "content": text}]
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as client,
        client.post(
            "/v1/chat/completions",
            json={"model": model_name, "messages": messages, **fields},
        ) as answer,
    ):
        await answer.read()
        return answer.status, answer.headers.get("x-headrace-replayed")


async def cache(site: GatewaySite) -> None:
    project = site.database.store.get(Project, make_id("prj", 1))
    site.database.store.update(replace(project, caches_answers=True))
    await site.gateway.follower.load()


async def test_nothing_is_cached_unless_the_project_wants_it(site: GatewaySite) -> None:
    assert [await ask(site) for _ in range(2)] == [(200, None)] * 2
    assert len(site.engines[0].seen) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_request_is_answered_again_for_nothing(
    site: GatewaySite, stream: bool
) -> None:
    await cache(site)
    assert await ask(site, stream=stream) == (200, None)
    assert await ask(site, stream=stream) == (200, "finished")
    assert await ask(site, "Something else", stream=stream) == (200, None)
    assert len(await site.settlements(2)) == len(site.engines[0].seen) == 2


async def test_a_key_gets_no_cached_answer_of_a_model_that_it_may_not_use(
    site: GatewaySite,
) -> None:
    await cache(site)
    assert await ask(site) == (200, None)
    key = site.database.store.get(ApiKey, make_id("key", 1))
    site.database.store.update(replace(key, models=("other",)))
    await site.gateway.follower.load()
    assert await ask(site) == (403, None)
