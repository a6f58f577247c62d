"""A key that was made a moment ago is right at once, and nobody makes looks at the store by it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from headrace.gateway import follower
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, pepper
from headrace.spec.api_key_format import format_key, hash_secret, parse_key
from headrace.spec.tenancy import ApiKey


async def chat(client: aiohttp.ClientSession) -> int:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello there"}]}
    async with client.post("/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status


@asynccontextmanager
async def site_that_never_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession, str]]:
    """A gateway that looks at its store only when it is asked; a key that is not made yet."""
    monkeypatch.setattr(follower, "poll_interval_s", 3600.0)
    text = format_key(make_id("key", 2), bytes(31) + b"2")
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        headers = {"Authorization": f"Bearer {text}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client, text


def make_second_key(site: GatewaySite, text: str) -> None:
    parsed = parse_key(text)
    assert parsed is not None
    first = site.database.store.get(ApiKey, make_id("key", 1))
    digest = hash_secret(pepper, parsed.secret)
    site.database.store.create(
        msgspec.structs.replace(first, id=parsed.key_id, name="second", secret_hmac=digest)
    )


async def test_a_new_key_is_right_at_its_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site_that_never_looks(tmp_path, monkeypatch) as (site, client, text):
        assert await chat(client) == 401
        make_second_key(site, text)
        assert await chat(client) == 200


async def test_a_flood_of_wrong_keys_makes_few_looks_at_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site_that_never_looks(tmp_path, monkeypatch) as (site, client, text):
        looks = 0
        revision = site.database.store.revision

        def counted() -> int:
            nonlocal looks
            looks += 1
            return revision()

        monkeypatch.setattr(site.database.store, "revision", counted)
        began_s = time.monotonic()
        answers = await asyncio.gather(*(chat(client) for _ in range(300)))
        elapsed_s = time.monotonic() - began_s
        assert set(answers) == {401}
        assert 1 <= looks <= elapsed_s / follower.refresh_interval_s + 1
        make_second_key(site, text)
        assert await chat(client) == 200, "the one behind the flood is known too"


async def test_a_store_that_hangs_keeps_no_wrong_key_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "refresh_wait_s_max", 0.05)
    async with site_that_never_looks(tmp_path, monkeypatch) as (site, client, _):
        back = threading.Event()
        revision = site.database.store.revision

        def hanging() -> int:
            back.wait()
            return revision()

        monkeypatch.setattr(site.database.store, "revision", hanging)
        try:
            assert [await chat(client) for _ in range(3)] == [401] * 3
            good = {"Authorization": f"Bearer {site.api_key}"}
            async with aiohttp.ClientSession(site.url, headers=good) as customer:
                assert await chat(customer) == 200
        finally:
            back.set()
