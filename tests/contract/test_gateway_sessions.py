"""Requests of one session go to one replica, whichever gateway takes them."""

from pathlib import Path

import aiohttp
import pytest

from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import gateway_site, model_name

requests_count = 12
key = "chat-7"


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """One for each gateway."""
    made = [tmp_path / str(number) for number in range(4)]
    for each in made:
        each.mkdir()
    return made


async def asked_of(directory: Path, session: str | None) -> list[int]:
    """How many requests each of four engines got, each with another prompt."""
    engines = [FakeEngine() for _ in range(4)]
    async with gateway_site(directory, engines) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            for number in range(requests_count):
                body = {
                    "model": model_name,
                    "messages": [{"role": "user", "content": f"Question {number}"}],
                    **({} if session is None else {"prompt_cache_key": session}),
                }
                async with client.post("/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
    return [len(engine.seen) for engine in engines]


async def test_a_session_stays_at_one_replica_and_two_gateways_agree_which(
    directories: list[Path],
) -> None:
    first = await asked_of(directories[0], key)
    assert sorted(first) == [0, 0, 0, requests_count]
    assert await asked_of(directories[1], key) == first


async def test_without_a_session_and_with_others_all_replicas_have_work(
    directories: list[Path],
) -> None:
    alone = await asked_of(directories[0], None)
    assert max(alone) < requests_count
    places = [
        await asked_of(directory, f"chat-{number}")
        for number, directory in enumerate(directories[1:])
    ]
    assert any(place != places[0] for place in places)
