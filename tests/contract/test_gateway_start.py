"""A gateway that starts serves what it says that it serves, and nobody who is gone delays it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import pytest

from headrace.base.clock import SystemClock
from headrace.gateway import recovery
from headrace.http.asgi import Receive, Scope, Send
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import TokenUsage, UsageSource
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import (
    add_model,
    fill_store,
    gateway_site,
    make_id,
    model_name,
    price,
    serving,
)
from headrace.spec.prices import PriceBook, PriceVersion
from headrace.storage import open_sqlite

models_count = 20


@asynccontextmanager
async def silent_engine() -> AsyncIterator[str]:
    """The address of an engine that takes requests and never answers."""
    is_over = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await is_over.wait()

    async with serving(wait) as url:
        try:
            yield url
        finally:
            is_over.set()


async def test_a_started_gateway_lists_and_answers_all_models_that_live(tmp_path: Path) -> None:
    names = [model_name, *(f"model-{number}" for number in range(2, models_count + 1))]
    async with serving(FakeEngine()) as engine_url:
        with closing(open_sqlite(tmp_path / "headrace.db")) as database:
            fill_store(database, [(engine_url, "")], None)
            for number, name in enumerate(names[1:], start=2):
                add_model(database, name, [(engine_url, "")], number=number)
            database.store.create(
                PriceBook(
                    id=make_id("prb", 999),
                    name="all",
                    create_time=1.0,
                    effective_time=1.0,
                    prices=dict.fromkeys(names, price),
                )
            )
        for _ in range(2):  # a restart is a start
            async with start_again(tmp_path, engine_url) as client:
                async with client.get("/readyz") as answer:
                    assert answer.status == 200
                async with client.get("/v1/models") as answer:
                    listed = {each["id"] for each in (await answer.json())["data"]}
                assert listed == set(names)
                for name in names:
                    body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
                    async with client.post("/v1/chat/completions", json=body) as answer:
                        assert answer.status == 200, (name, await answer.read())


@asynccontextmanager
async def start_again(directory: Path, engine_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway over a store that is filled already."""
    addresses = [engine_url] * models_count
    async with gateway_site(directory, [], addresses=addresses) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield client


async def test_an_engine_that_never_answers_does_not_keep_a_gateway_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "recovery_timeout_s", 0.2)
    clock = SystemClock()
    count = 3 * recovery.questions_at_once_max
    with closing(Journal(tmp_path / "journal")) as journal:
        crashed = Meter(Admission(clock), journal)
        for number in range(count):
            reservation = crashed.reserve(
                request_id=f"req_{number}",
                tenant_id=make_id("ten", 1),
                project_id=make_id("prj", 1),
                key_id=make_id("key", 1),
                model=model_name,
                price=PriceVersion(make_id("prb", 1), price),
                credit_floor_nanousd=None,
                prompt_tokens_max=100,
                output_tokens_max=100,
            )
            crashed.checkpoint(reservation, TokenUsage(7, 0, 3))
    async with silent_engine() as url, gateway_site(tmp_path, [], addresses=[url]) as site:
        settled = await site.settlements(count)
    assert {(each.source, each.usage) for each in settled} == {
        (UsageSource.RECOVERED, TokenUsage(7, 0, 3))
    }
