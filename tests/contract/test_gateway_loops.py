"""What a gateway does beside requests: named, counted when it fails, and told of by its probes."""

from pathlib import Path

import aiohttp
import pytest

from headrace.gateway.load_follower import LoadFollower
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import gateway_site


async def text_of(url: str) -> str:
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_every_loop_is_told_of_before_it_fails(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        metrics = await text_of(f"{site.url}/metrics")
        ready = await text_of(f"{site.url}/readyz")
    names = (
        *("batches", "context_lengths", "engine_caches", "engine_loads", "snapshot"),
        "journal_shipper",
    )
    for name in names:
        assert f'headrace_gateway_loop_failures_total{{loop="{name}"}} 0.0' in metrics
    assert '"state":"ready"' in ready


async def test_a_loop_that_keeps_failing_is_told_and_requests_go_on(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        for _ in range(3):
            site.gateway.loops.note("engine_loads", KeyError("x"))
        metrics = await text_of(f"{site.url}/metrics")
        ready = await text_of(f"{site.url}/readyz")
    assert 'headrace_gateway_loop_failures_total{loop="engine_loads"} 3.0' in metrics
    assert '"state":"degraded"' in ready
    assert "engine_loads (3 times in a row, KeyError)" in ready


async def test_a_follower_that_failed_follows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    ask_all = LoadFollower.ask_all

    async def ask_all_but_once(self: LoadFollower) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise KeyError
        await ask_all(self)

    monkeypatch.setattr(LoadFollower, "ask_all", ask_all_but_once)
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        while asked < 2:
            await text_of(f"{site.url}/livez")
        assert site.gateway.loops.totals()["engine_loads"] == 1
