"""A model that was made a moment ago is there, and asking for one that is not costs few looks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from headrace.base.errors import Unavailable
from headrace.gateway import follower
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, add_model, gateway_site, serving

name = "made-a-moment-ago"


async def chat(client: aiohttp.ClientSession) -> int:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello there"}]}
    async with client.post("/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status


@asynccontextmanager
async def site_that_never_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    monkeypatch.setattr(follower, "poll_interval_s", 3600.0)
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client


@pytest.mark.parametrize("first", ["chat", "card"])
async def test_a_new_model_answers_at_its_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with (
        site_that_never_looks(tmp_path, monkeypatch) as (site, client),
        serving(FakeEngine()) as url,
    ):
        assert await chat(client) == 404
        add_model(site.database, name, [(url, "")], number=2)
        if first == "card":
            async with client.get(f"/v1/models/{name}") as answer:
                assert (answer.status, (await answer.json())["id"]) == (200, name)
        assert await chat(client) == 200


async def test_a_flood_of_unknown_names_makes_few_looks_at_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site_that_never_looks(tmp_path, monkeypatch) as (site, client):
        looks = 0
        revision = site.database.store.revision

        def counted() -> int:
            nonlocal looks
            looks += 1
            return revision()

        monkeypatch.setattr(site.database.store, "revision", counted)
        began_s = time.monotonic()
        answers = await asyncio.gather(*(chat(client) for _ in range(200)))
        elapsed_s = time.monotonic() - began_s
    assert set(answers) == {404}
    assert 1 <= looks <= elapsed_s / follower.refresh_interval_s + 1


async def test_a_store_that_is_away_keeps_nobody_waiting_who_asks_for_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site_that_never_looks(tmp_path, monkeypatch) as (site, client):

        def away() -> int:
            raise Unavailable("the store is away")

        monkeypatch.setattr(site.database.store, "revision", away)
        assert await chat(client) == 404
