"""Other APIs over the same engines, asked with their makers' own clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anthropic
import openai
import pytest

from headrace.ledger.reservation import Outcome
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        yield site


@pytest.fixture
async def claude(site: GatewaySite) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        api_key=site.api_key, base_url=site.url, max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def gpt(site: GatewaySite) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=site.api_key, base_url=site.url + "/v1", max_retries=0
    ) as client:
        yield client


async def test_anthropics_client_gets_a_message_and_its_tokens_are_settled(
    site: GatewaySite, claude: anthropic.AsyncAnthropic
) -> None:
    message = await claude.messages.create(
        model=model_name, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
    )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == " t0 t1 t2 t3"
    assert (message.model, message.stop_reason) == (model_name, "end_turn")
    (settlement,) = await site.settlements(1)
    assert settlement.usage.completion_tokens == message.usage.output_tokens == 4
    assert settlement.usage.prompt_tokens == message.usage.input_tokens


async def test_anthropics_client_gets_a_stream(
    site: GatewaySite, claude: anthropic.AsyncAnthropic
) -> None:
    async with claude.messages.stream(
        model=model_name, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
    ) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert texts == [" t0", " t1", " t2", " t3"]
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.FINISHED
    assert settlement.usage.prompt_tokens == message.usage.input_tokens > 0


async def test_anthropics_client_understands_refusals(
    site: GatewaySite, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(
            model="nothing", max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
        )
    assert '"type":"not_found_error"' in missing.value.response.text
    async with anthropic.AsyncAnthropic(api_key="hr_wrong", base_url=site.url) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(
                model=model_name, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
            )


async def test_a_key_may_come_as_anthropics_header(site: GatewaySite) -> None:
    for key, status in ((site.api_key, 200), ("hr_wrong", 401), ("", 401)):
        async with (
            aiohttp.ClientSession(site.url, headers={"X-Api-Key": key}) as client,
            client.get("/v1/models") as answer,
        ):
            assert answer.status == status


async def test_embeddings_are_charged_as_embedding_tokens(
    site: GatewaySite, gpt: openai.AsyncOpenAI
) -> None:
    answer = await gpt.embeddings.create(
        model=model_name, input=["one", "two"], encoding_format="float"
    )
    assert answer.data[0].embedding == [0.5, -0.5]
    assert answer.model == model_name
    (settlement,) = await site.settlements(1)
    used = settlement.usage
    assert used.embedding_tokens == used.prompt_tokens == answer.usage.prompt_tokens
    assert used.completion_tokens == 0
    assert settlement.charge is not None
    assert settlement.charge.waived_nanousd == 0


async def test_reranking_is_charged_by_what_was_read_and_tokenizing_is_not(
    site: GatewaySite,
) -> None:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    rerank = {"model": model_name, "query": "q", "documents": ["a", "b"]}
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        async with client.post("/v1/rerank", json=rerank) as answer:
            assert answer.status == 200
        async with client.post("/v1/tokenize", json={"model": model_name, "prompt": "a"}) as answer:
            assert (await answer.json())["count"] > 0
        async with client.post("/v1/score", json={"model": model_name, "text_1": "a"}) as answer:
            assert answer.status == 404
    first, second, third = await site.settlements(3)
    assert (first.usage.prompt_tokens > 0, first.usage.completion_tokens) == (True, 0)
    assert second.amount_nanousd == 0
    assert third.outcome is Outcome.REJECTED


async def test_models_are_listed_for_openais_client(gpt: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in gpt.models.list()] == [model_name]
    assert (await gpt.models.retrieve(model_name)).id == model_name


async def test_several_answers_are_reserved_for(site: GatewaySite, gpt: openai.AsyncOpenAI) -> None:
    await gpt.chat.completions.create(
        model=model_name, n=3, max_tokens=5, messages=[{"role": "user", "content": "Hello"}]
    )
    (settlement,) = await site.settlements(1)
    assert settlement.charge is not None
    assert settlement.charge.waived_nanousd == 0
