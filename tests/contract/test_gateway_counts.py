"""Prompts are counted exactly where their bytes alone would refuse them or cap their answers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

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
