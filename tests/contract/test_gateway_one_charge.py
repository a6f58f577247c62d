"""A request without a key is charged for one answer at most, however many engines worked for it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headrace.gateway.forwarding import Timeouts
from headrace.ledger.reservation import Outcome, Settlement, TokenUsage, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    add_model,
    gateway_site,
    make_id,
    model_name,
    serving,
)
from headrace.spec.deployments import Deployment
from headrace.spec.hedging import Hedging
from headrace.spec.models import Model
from headrace.spec.settlements import platform_tenant_id

chat_path = "/v1/chat/completions"
cut_late = Behaviour(failure=Failure.CUT, fail_after=3)  # of an unstreamed answer: none of it came
cut_early = Behaviour(failure=Failure.CUT)
refused_late = Behaviour(failure=Failure.ERROR_EVENT, fail_after=3)  # with an error status
impatient = Timeouts(first_output_s=0.05, whole_s=0.05)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}


@asynccontextmanager
async def asking(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        yield client


async def ask(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, str]:
    async with client.post(chat_path, json=body(**fields)) as answer:
        return answer.status, await answer.text()


@asynccontextmanager
async def with_spare(
    directory: Path, engine: FakeEngine, **site_fields: Any
) -> AsyncIterator[tuple[GatewaySite, FakeEngine]]:
    """A model whose one replica is `engine`, and another model that answers in its place."""
    spare = FakeEngine()
    async with gateway_site(directory, [engine], **site_fields) as site, serving(spare) as url:
        add_model(site.database, "spare", [(url, "")], number=2)
        model = site.database.store.list(Model)[0]
        site.database.store.update(msgspec.structs.replace(model, fallbacks=("spare",)))
        await site.gateway.follower.load()
        yield site, spare


def owed(settlements: Sequence[Settlement]) -> list[Settlement]:
    """What somebody pays for."""
    return [one for one in settlements if one.amount_nanousd]


def tokens(settlements: Sequence[Settlement]) -> int:
    return sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in settlements)


def counted(engines: Sequence[FakeEngine]) -> int:
    """What the engines' own counters say."""
    return sum(
        seen.prompt_tokens + seen.completion_tokens for engine in engines for seen in engine.seen
    )


@pytest.mark.parametrize(
    ("stream", "broken"), [(False, cut_late), (True, cut_early), (False, refused_late)]
)
async def test_a_model_that_broke_after_it_worked_is_not_charged_beside_its_fallback(
    tmp_path: Path, stream: bool, broken: Behaviour
) -> None:
    engine = FakeEngine(default=broken)
    async with with_spare(tmp_path, engine) as (site, spare):
        async with asking(site) as client:
            status, said = await ask(client, stream=stream)
        settlements = await site.settlements(2)
        await site.booked(2)
        problems = site.database.ledger.check()
        totals = site.database.ledger.snapshot().totals_nanousd
    first, second = settlements
    assert status == 200, said
    assert (first.outcome, first.source) == (Outcome.FAILED, UsageSource.ENGINE)
    assert first.usage == TokenUsage(engine.seen[0].prompt_tokens, 0, broken.fail_after)
    assert (first.is_borne, first.amount_nanousd) == (True, 0)
    assert first.charge is not None
    assert first.charge.waived_nanousd > 0
    assert owed(settlements) == [second]
    assert tokens(settlements) == counted([engine, spare])
    assert totals[second.tenant_id] == (0, second.amount_nanousd)
    assert problems == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_never_began_in_time_costs_nothing_and_the_clients_retry_once(
    tmp_path: Path, stream: bool
) -> None:
    engine = FakeEngine()
    engine.plan.append(Behaviour(failure=Failure.HANG, fail_after=0))
    async with gateway_site(tmp_path, [engine], timeouts=impatient) as site:
        async with asking(site) as client:
            _, late = await ask(client, stream=stream)
            status, said = await ask(client)
        settlements = await site.settlements(2)
    assert "deadline_exceeded" in late
    assert status == 200, said
    late_one, answered = settlements
    assert (late_one.outcome, late_one.is_borne) == (Outcome.FAILED, True)
    assert late_one.usage.prompt_tokens == engine.seen[0].prompt_tokens
    assert owed(settlements) == [answered]


async def test_a_stream_that_broke_after_it_began_is_charged_as_far_as_it_came_and_nothing_else(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(default=Behaviour(failure=Failure.CUT, fail_after=2))
    async with with_spare(tmp_path, engine) as (site, spare), asking(site) as client:
        _, said = await ask(client, stream=True)
        (settlement,) = await site.settlements(1)
    assert "upstream_failed" in said
    assert (settlement.outcome, settlement.is_borne) == (Outcome.FAILED, False)
    assert settlement.usage.completion_tokens == 2
    assert settlement.amount_nanousd
    assert spare.seen == []


@pytest.mark.parametrize(
    ("stream", "broken"), [(False, cut_late), (True, cut_early), (False, refused_late)]
)
async def test_what_a_broken_attempt_used_is_the_platforms_when_another_replica_answers(
    tmp_path: Path, stream: bool, broken: Behaviour
) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan
    engines[0].plan.append(broken)
    async with gateway_site(tmp_path, engines) as site:
        async with asking(site) as client:
            status, said = await ask(client, stream=stream)
            settlements = await site.settlements(2)
            metrics = await (await client.get("/metrics")).text()
        await site.booked(2)
        problems = site.database.ledger.check()
    assert status == 200, said
    (answered,) = owed(settlements)
    (borne,) = [one for one in settlements if one is not answered]
    assert borne.request_id == f"{answered.request_id}.try1"
    assert (borne.tenant_id, borne.outcome) == (platform_tenant_id, Outcome.FAILED)
    assert borne.source is UsageSource.ENGINE
    assert borne.usage.completion_tokens == broken.fail_after
    assert borne.replica_id not in (None, answered.replica_id)
    assert tokens(settlements) == counted(engines)
    assert f"headrace_gateway_retried_tokens_total {tokens([borne])}" in metrics
    assert problems == []


async def test_of_an_attempt_that_was_refused_before_it_was_begun_nothing_is_written(
    tmp_path: Path,
) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan
    engines[0].plan.append(Behaviour(failure=Failure.STATUS, status=503))
    async with gateway_site(tmp_path, engines) as site:
        async with asking(site) as client:
            status, said = await ask(client)
            await ask(client)
        await site.booked(2)
        await site.gateway._borne.close()
        settlements = await site.settlements(2)
    assert status == 200, said
    assert [one.outcome for one in settlements] == [Outcome.FINISHED] * 2


async def test_of_two_attempts_at_once_that_break_neither_is_charged_beside_the_third(
    tmp_path: Path,
) -> None:
    engines = [FakeEngine() for _ in range(3)]
    gates = [asyncio.Event() for _ in range(2)]
    for engine in engines:
        engine.plan, engine.arrived = engines[0].plan, engines[0].arrived
    engines[0].plan.extend(Behaviour(failure=Failure.CUT, gate=gate) for gate in gates)
    async with gateway_site(tmp_path, engines) as site:
        store = site.database.store
        deployment = store.get(Deployment, make_id("dep", 1))
        store.update(msgspec.structs.replace(deployment, hedging=Hedging(after_s=0.0)))
        await site.gateway.follower.load()
        async with asking(site) as client:
            task = asyncio.create_task(ask(client, stream=True))
            async with engines[0].arrived:  # one for all of them
                await engines[0].arrived.wait_for(lambda: sum(len(e.seen) for e in engines) == 2)
            for gate in gates:
                gate.set()
            status, said = await task
        settlements = await site.settlements(3)
    assert status == 200, said
    (answered,) = owed(settlements)
    ends = {one.request_id.removeprefix(answered.request_id) for one in settlements}
    assert ends == {"", ".hedge", ".try1"}
    assert tokens(settlements) == counted(engines)


async def test_a_fallback_that_breaks_too_costs_nothing(tmp_path: Path) -> None:
    async with with_spare(tmp_path, FakeEngine(default=cut_late)) as (site, spare):
        spare.default = cut_late
        async with asking(site) as client:
            status, _ = await ask(client)
        settlements = await site.settlements(2)
    assert status == 502
    assert owed(settlements) == []
    assert all(one.is_borne and one.usage.completion_tokens == 3 for one in settlements)


async def test_credit_for_one_worst_case_is_enough_for_a_fallback_after_a_model_that_broke(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(default=cut_late)
    needed_nanousd = 0
    for directory, status_then in ((tmp_path / "poor", 402), (tmp_path / "rich", 200)):
        directory.mkdir()
        credit = {"credit_floor_nanousd": 0, "credit_nanousd": needed_nanousd or 1}
        async with with_spare(directory, engine, **credit) as (site, spare):
            async with asking(site) as client:
                status, said = await ask(client, max_tokens=100)
            assert status == status_then, said
            if status == 402:
                needed_nanousd = msgspec.json.decode(said)["error"]["needed_nanousd"]
                assert (engine.seen, spare.seen) == ([], [])
            else:
                (paid,) = owed(await site.settlements(2))
                assert 0 < (paid.amount_nanousd or 0) <= needed_nanousd
