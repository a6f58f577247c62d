"""Every class of tokens that an engine tells is in the settlement and in the sums of usage."""

from pathlib import Path

import aiohttp
import pytest

from headrace.ledger.reservation import TokenUsage, UsageSource
from headrace.protocol.responses import CompletionTokensDetails, PromptTokensDetails
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

messages = [{"role": "user", "content": "Hello there, what is in these pictures?"}]
detailed = Behaviour(
    tokens=4,
    prompt_details=PromptTokensDetails(cached_tokens=2, image_tokens=5),
    completion_details=CompletionTokensDetails(
        reasoning_tokens=3, accepted_prediction_tokens=1, rejected_prediction_tokens=6
    ),
)


async def ask(site: GatewaySite, **fields: object) -> None:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    body = {"model": model_name, "messages": messages, **fields}
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as client,
        client.post("/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200
        await answer.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_classes_reach_the_sums_of_usage(tmp_path: Path, stream: bool) -> None:
    engine = FakeEngine(default=detailed)
    async with gateway_site(tmp_path, [engine]) as site:
        await ask(site, stream=stream)
        (settlement,) = await site.settlements(1)
        await site.booked(1)
        (row,) = site.database.ledger.usage()
    prompt_tokens = engine.seen[0].prompt_tokens
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage == TokenUsage(
        prompt_tokens, 2, 4, reasoning_tokens=3, draft_tokens=6, image_tokens=5
    )
    assert (row.reasoning_tokens, row.draft_tokens, row.image_tokens) == (3, 6, 5)


async def test_a_class_that_nobody_counted_is_unknown_and_not_nothing(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        await ask(site)
        (settlement,) = await site.settlements(1)
    usage = settlement.usage
    assert (usage.reasoning_tokens, usage.draft_tokens, usage.image_tokens) == (None, None, None)
    assert usage.embedding_tokens is None


async def test_what_a_broken_stream_had_told_of_its_classes_is_settled(tmp_path: Path) -> None:
    behaviour = Behaviour(
        tokens=9,
        failure=Failure.CUT,
        fail_after=4,
        completion_details=CompletionTokensDetails(reasoning_tokens=2),
    )
    async with gateway_site(tmp_path, [FakeEngine(default=behaviour)]) as site:
        await ask(site, stream=True)
        (settlement,) = await site.settlements(1)
    assert settlement.usage.completion_tokens == 4
    assert settlement.usage.reasoning_tokens == 2
