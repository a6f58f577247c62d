"""Callers who leave engines that run to their end: read on for nobody, billed whole, bounded.

Triton's adapter says that nothing ends its requests; the engine itself would notice a connection
that closes, which is how these tests see whether it was kept.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.gateway import account, draining
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, serving
from headrace.sim.media_engine import MediaEngine
from headrace.storage import open_sqlite

tokens = 9


@asynccontextmanager
async def triton(
    directory: Path, **behaviour: Any
) -> AsyncIterator[tuple[GatewaySite, asyncio.Event, aiohttp.ClientSession]]:
    """A gateway over an engine that cannot be ended, and the gate in its answers."""
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(tokens=tokens, gate=gate, **behaviour))
    async with gateway_site(directory, [engine], engine="triton") as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, gate, client


async def ask(
    client: aiohttp.ClientSession, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def ask_and_leave(
    site: GatewaySite, client: aiohttp.ClientSession, *, stream: bool, after: int = 0
) -> None:
    """Send a request and close its connection when the engine has made so many tokens."""
    before = len(site.engines[0].seen)
    task = asyncio.create_task(ask(client, stream=stream))
    seen = await site.engines[0].wait_for(before + 1)
    await seen.started.wait()
    while seen.completion_tokens < after:
        await client.get("/livez")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    while b'"outcome":"aborted"' not in last_line(site):
        await client.get("/livez")


def last_line(site: GatewaySite) -> bytes:
    """What the access log says of the newest generating request."""
    site.gateway.access_log.flush()
    lines = site.access_log.getvalue().splitlines()
    return next((line for line in reversed(lines) if b"completions" in line), b"")


async def metric(client: aiohttp.ClientSession, result: str) -> float:
    async with client.get("/metrics") as answer:
        text = await answer.text()
    name = f'headrace_gateway_drains_total{{result="{result}"}} '
    return float(text.partition(name)[2].partition("\n")[0])


def in_flight(site: GatewaySite) -> int:
    return sum(endpoint.in_flight_requests for endpoint in site.gateway.endpoints)


@pytest.mark.parametrize(
    ("stream", "after"), [(True, 0), (True, 3), (False, 0)], ids=["queued", "begun", "whole"]
)
async def test_what_nobody_waits_for_is_read_to_its_end_and_billed_whole(
    tmp_path: Path, stream: bool, after: int
) -> None:
    async with triton(tmp_path, gate_after=after) as (site, gate, client):
        await ask_and_leave(site, client, stream=stream, after=after)
        (seen,) = site.engines[0].seen
        assert not seen.ended.is_set(), "the engine saw its connection close"
        assert in_flight(site) == 1
        assert site.journal.status().running_requests == 1
        gate.set()
        (settlement,) = await site.settlements(1)
        assert await metric(client, "done") == 1
        assert in_flight(site) == 0
        assert site.journal.status().running_requests == 0
    assert seen.finish_reason == "stop"
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage == TokenUsage(seen.prompt_tokens, 0, tokens)


@pytest.mark.parametrize("after", [0, 3])
async def test_a_callers_deadline_is_kept_and_the_answer_read_on(
    tmp_path: Path, after: int
) -> None:
    async with triton(tmp_path, gate_after=after) as (site, gate, client):
        limit = {"X-Request-Timeout": "1.5" if after else "0.3"}
        status, body = await ask(client, limit, stream=True)
        last = json.loads(body.split(b"data: ")[-1])
        assert not gate.is_set(), "it was told while the engine worked"
        gate.set()
        (settlement,) = await site.settlements(1)
    assert last["error"]["code"] == "deadline_exceeded"
    assert status == 200  # its headers were out
    assert f" t{after}".encode() not in body
    assert settlement.usage.completion_tokens == tokens
    assert settlement.source is UsageSource.ENGINE


async def test_an_engine_that_breaks_meanwhile_is_billed_by_what_passed(tmp_path: Path) -> None:
    failing = {"gate_after": 2, "failure": Failure.CUT, "fail_after": 5}
    async with triton(tmp_path, **failing) as (site, gate, client):
        await ask_and_leave(site, client, stream=True, after=2)
        gate.set()
        (settlement,) = await site.settlements(1)
        assert await metric(client, "cut") == 1
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.COUNTED
    assert 5 <= settlement.usage.completion_tokens < tokens


async def test_what_takes_too_long_is_cut_and_billed_by_what_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "drain_s_max", 0.05)
    async with triton(tmp_path, gate_after=3) as (site, _, client):
        await ask_and_leave(site, client, stream=True, after=3)
        await site.engines[0].seen[0].ended.wait()
        (settlement,) = await site.settlements(1)
        assert in_flight(site) == 0
        assert await metric(client, "cut") == 1
    assert settlement.source is UsageSource.COUNTED
    assert 3 <= settlement.usage.completion_tokens < tokens


async def test_too_many_at_once_are_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "answers_max", 1)
    async with triton(tmp_path) as (site, gate, client):
        await ask_and_leave(site, client, stream=False)
        task = asyncio.create_task(ask(client))
        second = await site.engines[0].wait_for(2)
        await second.started.wait()
        task.cancel()
        await second.ended.wait()
        (ended,) = await site.settlements(1)
        assert await metric(client, "refused") == 1
        gate.set()
        _, drained = await site.settlements(2)
        await ask_and_leave_again(site, client)
    assert ended.usage.completion_tokens == 0
    assert drained.usage.completion_tokens == tokens


async def ask_and_leave_again(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    """The place is free again."""
    before = await metric(client, "refused")
    task = asyncio.create_task(ask(client))
    await site.engines[0].wait_for(3)
    task.cancel()
    await site.settlements(3)
    assert await metric(client, "refused") == before


async def test_a_gateway_that_ends_settles_what_it_cannot_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "close_timeout_s", 0.05)
    async with triton(tmp_path, gate_after=3) as (site, _, client):
        await ask_and_leave(site, client, stream=True, after=3)
    with closing(open_sqlite(tmp_path / "headrace.db")) as database:
        (row,) = database.ledger.usage(("model",))
        assert row.requests == 1
        assert 3 <= row.completion_tokens < tokens
        assert database.ledger.check() == []


async def test_what_a_killed_gateway_read_on_is_settled_once_at_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "checkpoint_interval_s", 0.0)
    for name in ("first", "next"):
        (tmp_path / name).mkdir()
    async with triton(tmp_path / "first", gate_after=3) as (site, gate, client):
        await ask_and_leave(site, client, stream=True, after=3)
        while site.journal.status().pending_records:
            await client.get("/livez")
        shutil.copytree(tmp_path / "first" / "journal", tmp_path / "next" / "journal")
        gate.set()
        await site.settlements(1)
    async with gateway_site(tmp_path / "next", [FakeEngine()], engine="triton") as site:
        (settlement,) = await site.settlements(1)
        assert site.journal.status().running_requests == 0
    assert settlement.source is UsageSource.RECOVERED
    assert 1 <= settlement.usage.completion_tokens < tokens


async def test_a_sound_that_nobody_waits_for_is_read_to_its_end(tmp_path: Path) -> None:
    engine = MediaEngine()
    engine.gate = asyncio.Event()
    async with (
        serving(engine) as address,
        gateway_site(tmp_path, [], addresses=[address], engine="triton") as site,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {site.api_key}"}) as client,
    ):
        body = {"model": model_name, "voice": "a", "input": "Hello"}
        answer = await client.post(f"{site.url}/v1/audio/speech", json=body)
        await answer.content.readexactly(100)
        answer.close()
        while not site.access_log.getvalue():
            await client.get(f"{site.url}/livez")
            site.gateway.access_log.flush()
        assert in_flight(site) == 1
        engine.gate.set()
        (settlement,) = await site.settlements(1)
        assert in_flight(site) == 0
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.UNMETERED
