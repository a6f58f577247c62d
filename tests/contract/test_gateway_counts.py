"""Prompts are counted exactly where their bytes alone would refuse them or cap their answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from headrace.gateway import token_counter
from headrace.gateway.token_counter import counts_at_once_max
from headrace.http.asgi import Receive, Scope, Send
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, price

prompt = "x" * 4000  # 4,000 tokens by its bytes, and 505 by the fake engine
asked_tokens = 10
input_nanousd = price.input_nanousd_per_million // 1_000_000
output_nanousd = price.output_nanousd_per_million // 1_000_000


def body(**fields: object) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model_name, "messages": messages, **fields}).encode()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(
        tmp_path,
        [FakeEngine()],
        credit_floor_nanousd=0,
        credit_nanousd=1000 * input_nanousd,
    ) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def test_credit_for_the_real_prompt_is_enough(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    async with client.post("/v1/chat/completions", data=body(max_tokens=asked_tokens)) as answer:
        assert answer.status == 200, await answer.text()
    (settlement,) = await site.settlements(1)
    assert settlement.usage.prompt_tokens > 500


async def test_an_answers_cap_is_what_the_credit_really_leaves(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    async with client.post("/v1/chat/completions", data=body()) as answer:
        assert answer.status == 200
        cap = int(answer.headers["x-headrace-max-tokens"])
    (settlement,) = await site.settlements(1)
    left_nanousd = (1000 - settlement.usage.prompt_tokens) * input_nanousd
    assert cap == left_nanousd // output_nanousd


async def test_an_engine_that_cannot_count_leaves_the_bound(
    tmp_path: Path,
) -> None:
    async with gateway_site(
        tmp_path,
        [FakeEngine(counts=False)],
        credit_floor_nanousd=0,
        credit_nanousd=1000 * input_nanousd,
    ) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with (
            aiohttp.ClientSession(site.url, headers=headers) as client,
            client.post("/v1/chat/completions", data=body(max_tokens=asked_tokens)) as answer,
        ):
            assert answer.status == 402


class SlowCounter(FakeEngine):
    """Counts when it is let."""

    def __init__(self) -> None:
        super().__init__(context_length=1_000_000)
        self.may_count = asyncio.Event()
        self.all_count = asyncio.Event()  # as many as may at once
        self.counting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/tokenize":
            self.counting += 1
            if self.counting == counts_at_once_max:
                self.all_count.set()
            await self.may_count.wait()
        await super().__call__(scope, receive, send)


async def test_prompts_of_100k_tokens_that_are_counted_stall_nobody_and_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SlowCounter()
    huge = "x" * 800_000  # 100,005 tokens by the fake engine; cut to the context by its bytes
    tokens_each = 100_100
    messages = [{"role": "user", "content": huge}]
    large = json.dumps({"model": model_name, "messages": messages, "max_tokens": 1}).encode()
    small = json.dumps(
        {"model": model_name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    ).encode()
    async with gateway_site(
        tmp_path, [engine], credit_floor_nanousd=0, credit_nanousd=5 * tokens_each * input_nanousd
    ) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:

            async def ask(data: bytes) -> int:
                async with client.post("/v1/chat/completions", data=data) as answer:
                    return answer.status

            waiting = [asyncio.create_task(ask(large)) for _ in range(counts_at_once_max)]
            await engine.all_count.wait()
            monkeypatch.setattr(token_counter, "waiting_counts_max", 0)
            assert await ask(small) == 200
            assert await ask(large) == 402  # nobody counts one more; its bound is over the credit
            assert engine.counting == counts_at_once_max
            engine.may_count.set()
            statuses = sorted(await asyncio.gather(*waiting))
    assert statuses == [200] * 5 + [402] * (counts_at_once_max - 5)
