"""A request whose prompt goes to one replica and whose answer comes from another: one bill."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.disaggregation import Disaggregation, ReplicaRole

long_chat = [{"role": "user", "content": "a word or two " * 200}]
Site = tuple[GatewaySite, aiohttp.ClientSession, FakeEngine, FakeEngine]


@asynccontextmanager
async def split_site(
    directory: Path, ours: Behaviour | None = None, engine: str = "headrace"
) -> AsyncIterator[Site]:
    """A gateway over one replica for prompts and one that answers."""
    engines = [FakeEngine(default=ours), FakeEngine()]
    async with gateway_site(directory, engines, engine=engine) as site:
        store = site.database.store
        deployment = store.get(Deployment, make_id("dep", 1))
        store.update(replace(deployment, disaggregation=Disaggregation(threshold_tokens=100)))
        roles = (ReplicaRole.PREFILL, ReplicaRole.DECODE)
        by_address = sorted(store.list(Replica), key=lambda replica: replica.id)
        for replica, role in zip(by_address, roles, strict=True):
            store.update(replace(replica, role=role))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client, engines[0], engines[1]


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": long_chat, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


async def only_bill(site: GatewaySite) -> tuple[Outcome, TokenUsage]:
    (settlement,) = await site.bills(1)
    return settlement.outcome, settlement.usage


def told(engine: FakeEngine, number: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(engine.seen[number].body)
    return body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_prompt_is_computed_at_one_and_answered_and_billed_at_the_other(
    tmp_path: Path, stream: bool
) -> None:
    async with split_site(tmp_path) as (site, client, first, second):
        status, body = await chat(client, stream=stream, max_tokens=3, stop=["x"])
        assert status == 200
        assert b"t2" in body
        assert b"kv_transfer_params" not in body
        asked, answered = told(first), told(second)
        assert asked["messages"] == answered["messages"] == long_chat
        assert (asked["max_tokens"], asked["stream"], "stop" in asked) == (1, False, False)
        assert asked["kv_transfer_params"]["do_remote_decode"] is True
        params = answered["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["remote_host"]) == (True, "127.0.0.1")
        assert answered["max_tokens"] == 3
        salt = "x-headrace-cache-salt"
        assert first.seen[0].headers[salt] == second.seen[0].headers[salt]
        outcome, usage = await only_bill(site)
        assert outcome is Outcome.FINISHED
        assert usage == TokenUsage(second.seen[0].prompt_tokens, 0, 3)


@pytest.mark.parametrize(
    ("own_name", "passed_on"), [("10.0.0.9", "10.0.0.9"), ("0.0.0.0", "127.0.0.1")]
)
async def test_what_vllm_answers_for_a_prompt_reaches_the_other_vllm_as_it_is(
    tmp_path: Path, own_name: str, passed_on: str
) -> None:
    waiting = {  # as its NIXL connector writes it
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [4, 5, 6],
        "remote_engine_id": "4ff35d5e-1d5c-4d3c-8d0a-0cc0be6f36a1",
        "remote_request_id": "chatcmpl-1",
        "remote_host": own_name,
        "remote_port": 5600,
        "tp_size": 2,
    }
    async with split_site(tmp_path, Behaviour(waiting_kv=waiting), "vllm") as (
        *_,
        client,
        first,
        second,
    ):
        status, body = await chat(client, max_tokens=3)
        assert (status, b"kv_transfer_params" in body) == (200, False)
        asked, answered = told(first), told(second)
        assert (asked["max_tokens"], asked["stream"]) == (1, False)
        assert asked["kv_transfer_params"]["do_remote_decode"] is True
        assert answered["kv_transfer_params"] == {**waiting, "remote_host": passed_on}
        assert asked["cache_salt"] == answered["cache_salt"]


async def test_a_short_prompt_is_answered_where_it_is_computed(tmp_path: Path) -> None:
    async with split_site(tmp_path) as (site, client, first, second):
        status, _ = await chat(client, messages=[{"role": "user", "content": "Hi"}])
        assert (status, len(first.seen), len(second.seen)) == (200, 0, 1)
        assert "kv_transfer_params" not in told(second)
        assert (await only_bill(site))[0] is Outcome.FINISHED


@pytest.mark.parametrize(
    "trouble",
    [
        Behaviour(failure=Failure.CUT),
        Behaviour(failure=Failure.STATUS),
        Behaviour(failure=Failure.STATUS, status=400),
        Behaviour(hands_over=False),
    ],
    ids=["cut", "503", "400", "no room"],
)
async def test_whatever_befalls_the_first_the_second_answers_alone(
    tmp_path: Path, trouble: Behaviour
) -> None:
    async with split_site(tmp_path, trouble) as (site, client, first, second):
        status, _ = await chat(client, stream=True)
        assert (status, len(first.seen), len(second.seen)) == (200, 1, 1)
        assert "kv_transfer_params" not in told(second)
        outcome, usage = await only_bill(site)
        assert (outcome, usage.prompt_tokens) == (Outcome.FINISHED, second.seen[0].prompt_tokens)
        async with client.get("/metrics") as metrics:
            text = await metrics.text()
        assert 'headrace_gateway_splits_total{result="failed"} 1' in text


async def test_a_caller_that_leaves_meanwhile_pays_for_the_prompt_alone(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with split_site(tmp_path, Behaviour(gate=gate)) as (site, client, first, second):
        task = asyncio.create_task(chat(client, stream=True))
        seen = await first.wait_for(1)
        await seen.started.wait()
        task.cancel()
        await seen.ended.wait()
        outcome, usage = await only_bill(site)
        assert (outcome, usage) == (Outcome.ABORTED, TokenUsage(seen.prompt_tokens, 0, 0))
        assert not second.seen


async def test_replicas_for_prompts_answer_where_nobody_else_can(tmp_path: Path) -> None:
    async with split_site(tmp_path) as (site, client, first, second):
        second.plan.append(Behaviour(failure=Failure.CUT))
        status, _ = await chat(client)
        assert status == 200
        assert [len(first.seen), len(second.seen)] == [2, 1]
        assert "kv_transfer_params" not in told(first, 1)
        assert (await only_bill(site))[0] is Outcome.FINISHED
