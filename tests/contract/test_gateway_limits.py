"""Limits and budgets through a whole gateway with 64 clients at once, and what a refusal says."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.ledger.journal import Journal
from headrace.ledger.reservation import Outcome
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    gateway_site,
    make_id,
    model_name,
    pepper,
    serving,
)
from headrace.sim.redis_server import RedisServer
from headrace.spec.limits import CalendarPeriod, Limits
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage import open_sqlite
from headrace.storage.redis_limits import RedisLimits

messages = [{"role": "user", "content": "Hi"}]
prompt_tokens_max = 2 + 512 + 64  # what the gateway reserves for these messages
client_count = 64


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine(default=Behaviour(tokens=8))]) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=client_count)
    headers = bearer(site.api_key)
    async with aiohttp.ClientSession(site.url, headers=headers, connector=connector) as session:
        yield session


async def limit(
    site: GatewaySite, limits: Limits, kind: type[ApiKey] | type[Project] | type[Tenant] = ApiKey
) -> None:
    found = site.database.store.get(kind, make_id(kind.id_prefix, 1))
    site.database.store.update(msgspec.structs.replace(found, limits=limits))
    await site.gateway.follower.load()


def monthly_budget(budget_nanousd: int) -> Limits:
    return Limits(budget_nanousd=budget_nanousd, budget_period=CalendarPeriod.MONTH)


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


async def ask(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, Any, Any]:
    body = {"model": model_name, "messages": messages, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json(), answer.headers


async def ask_until_refused(client: aiohttp.ClientSession, counts: list[int]) -> None:
    """One client: it sends until it is told to come back later than a settlement could help."""
    while True:
        status, body, _ = await ask(client, max_tokens=8)
        counts.append(status)
        if status == 200:
            continue
        error = body["error"]
        if error["reserved"] == 0 or error["used"] + error["needed"] > error["limit"]:
            return


async def spend(client: aiohttp.ClientSession) -> list[int]:
    counts: list[int] = []
    async with asyncio.TaskGroup() as clients:
        for _ in range(client_count):
            clients.create_task(ask_until_refused(client, counts))
    return counts


async def test_64_clients_use_a_budget_nearly_whole_and_never_over(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    budget_nanousd = 20_000_000
    await limit(site, monthly_budget(budget_nanousd), Tenant)
    statuses = await spend(client)
    settled = await site.settlements(statuses.count(200))
    spent = sum(item.amount_nanousd or 0 for item in settled)
    assert set(statuses) == {200, 402}
    assert 0.97 * budget_nanousd <= spent <= budget_nanousd


async def test_64_clients_use_a_token_quota_nearly_whole_and_never_over(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    quota = 20_000
    await limit(site, Limits(tokens_per_period=quota, period=CalendarPeriod.MONTH), Project)
    statuses = await spend(client)
    settled = await site.settlements(statuses.count(200))
    used = sum(item.usage.prompt_tokens + item.usage.completion_tokens for item in settled)
    assert set(statuses) == {200, 429}
    assert 0.97 * quota <= used <= quota


async def test_a_restart_gives_no_budget_anew(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        await limit(site, monthly_budget(2_000_000))
        async with aiohttp.ClientSession(site.url, headers=bearer(site.api_key)) as client:
            assert (await ask(client, max_tokens=8))[0] == 200
        spent = sum(item.amount_nanousd or 0 for item in await site.settlements(1))
        api_key = site.api_key
    async with AsyncExitStack() as stack:
        database = open_sqlite(tmp_path / "headrace.db")
        stack.callback(database.close)
        journal = Journal(tmp_path / "journal")
        stack.callback(journal.close)
        gateway = Gateway(database, journal, GatewayConfig(pepper), SystemClock())
        await stack.enter_async_context(gateway)
        url = await stack.enter_async_context(serving(gateway.app))
        async with aiohttp.ClientSession(url, headers=bearer(api_key)) as client:
            status, body, _ = await ask(client, max_tokens=900)
    assert status == 402
    assert body["error"]["used"] == spent


async def test_answers_carry_the_minute_limits_and_what_is_left(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await limit(site, Limits(requests_per_minute=9, tokens_per_minute=100_000))
    status, _, headers = await ask(client, max_tokens=8)
    assert status == 200
    assert headers["x-ratelimit-limit-requests"] == "9"
    assert headers["x-ratelimit-remaining-requests"] == "8"
    assert headers["x-ratelimit-limit-tokens"] == "100000"
    assert headers["x-ratelimit-remaining-tokens"] == str(100_000 - prompt_tokens_max - 8)
    assert 1 <= int(headers["x-ratelimit-reset-tokens"].removesuffix("s")) <= 60


async def test_a_request_over_the_limit_by_itself_is_told_that_waiting_does_not_help(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await limit(site, Limits(tokens_per_minute=1_000), Tenant)
    status, body, headers = await ask(client, max_tokens=1_000)
    error = body["error"]
    assert (status, error["scope"], error["limit_name"]) == (429, "tenant", "tokens_per_minute")
    assert (error["limit"], error["used"], error["reserved"]) == (1_000, 0, 0)
    assert "Retry-After" not in headers
    assert headers["x-ratelimit-remaining-tokens"] == "1000"


async def test_an_exhausted_budget_is_refused_until_its_period_ends(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await limit(site, monthly_budget(2_000_000))
    assert (await ask(client, max_tokens=8))[0] == 200
    status, body, headers = await ask(client, max_tokens=990)
    error = body["error"]
    assert (status, error["scope"], error["limit_name"]) == (402, "key", "budget_nanousd")
    assert int(headers["Retry-After"]) == math.ceil(error["reset_s"])


async def test_an_absent_max_tokens_is_capped_by_the_limits_and_said(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await limit(site, Limits(output_tokens_per_minute=100))
    status, _, headers = await ask(client)
    assert status == 200
    assert headers["x-headrace-max-tokens"] == "100"


async def test_every_answer_says_what_is_left_of_the_minute(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    await limit(site, Limits(requests_per_minute=4))
    body = {
        "model": model_name,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
    }
    asked: tuple[dict[str, Any], ...] = (
        {}, {"stream": True}, {"temperature": -1}, {}, {"stream": True}, {"stream": True}, {},
    )  # fmt: skip
    found: list[tuple[int, str | None]] = []
    for number, fields in enumerate(asked):
        headers = {"Idempotency-Key": "k"} if number in (1, 5) else {}
        async with client.post(
            "/v1/chat/completions", json={**body, **fields}, headers=headers
        ) as answer:
            await answer.read()
            left = answer.headers.getall("x-ratelimit-remaining-requests", [])
            found.append((answer.status, ",".join(left) or None))
    assert found == [
        (200, "3"),
        (200, "2"),
        (400, "2"),  # not counted, and told all the same
        (200, "1"),
        (200, "0"),
        (200, "0"),  # the second answer again, with what is left now
        (429, "0"),
    ]


async def is_degraded(client: aiohttp.ClientSession) -> bool:
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("headrace_limiter_degraded ")]
    return float(value) == 1.0


async def test_an_outage_of_the_shared_store_shows_in_a_metric_until_it_is_back(
    tmp_path: Path, own_redis_server: RedisServer
) -> None:
    with closing(RedisLimits(own_redis_server.url, "7")) as store:
        store.mark()
        async with gateway_site(tmp_path, [FakeEngine()], limits=store) as site:
            await limit(site, Limits(requests_per_minute=1_000_000))
            headers = bearer(site.api_key)
            async with aiohttp.ClientSession(site.url, headers=headers) as client:
                assert (await ask(client))[0] == 200
                assert not await is_degraded(client)
                own_redis_server.kill()
                while not await is_degraded(client):
                    assert (await ask(client))[0] in (200, 503)
                own_redis_server.start()
                while await is_degraded(client):
                    pass
                assert (await ask(client))[0] == 200
            settled = await site.settlements(2)
    assert {each.outcome for each in settled} == {Outcome.FINISHED}
