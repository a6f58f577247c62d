"""`model:adapter` through the gateway: who is asked, in what words, by whose price."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import msgspec
import openai
import pytest
from msgspec.structs import replace

from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, price
from headrace.spec.deployments import Deployment, LoraSource, Replica
from headrace.spec.prices import PriceBook
from headrace.spec.tenancy import ApiKey

sql, tone = LoraSource("sql", "/a/sql"), LoraSource("tone", "/a/tone")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    """Two replicas: the second is of the generation that has the adapters."""
    async with gateway_site(tmp_path, [FakeEngine(), FakeEngine()]) as site:
        store = site.database.store
        deployment = store.get(Deployment, make_id("dep", 1))
        with_loras = replace(deployment.template, loras=(sql, tone))
        store.update(replace(deployment.with_template(with_loras), progress=None))
        newer = store.get(Replica, make_id("rep", 2))
        store.update(replace(newer, generation=2))
        yield site


@pytest.fixture
async def gpt(site: GatewaySite) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=site.api_key, base_url=site.url + "/v1", max_retries=0
    ) as client:
        await listing(client, model_name, f"{model_name}:sql", f"{model_name}:tone")
        yield client


async def listed(client: openai.AsyncOpenAI) -> list[str]:
    return [card.id async for card in client.models.list()]


async def listing(client: openai.AsyncOpenAI, *models: str) -> None:
    """Return once the gateway has seen in the store that these are the models."""
    async with asyncio.timeout(30):
        for _ in count():
            if await listed(client) == [*models]:
                return


async def ask(client: openai.AsyncOpenAI, model: str) -> str:
    """The model that the answer says it is from."""
    completion = await client.completions.create(model=model, prompt="Hello", max_tokens=4)
    return completion.model


async def test_an_adapters_requests_go_where_it_is_and_come_back_by_its_name(
    site: GatewaySite, gpt: openai.AsyncOpenAI
) -> None:
    older, newer = site.engines
    for _ in range(8):
        assert await ask(gpt, f"{model_name}:tone") == f"{model_name}:tone"
    assert not older.seen
    bodies = [msgspec.json.decode(seen.body) for seen in newer.seen]
    assert {body["model"] for body in bodies} == {"fake:tone"}
    stream = await gpt.completions.create(
        model=f"{model_name}:sql", prompt="Hello", max_tokens=4, stream=True
    )
    assert {chunk.model async for chunk in stream} == {f"{model_name}:sql"}
    assert await ask(gpt, model_name) == model_name


async def test_an_adapter_that_no_deployment_has_is_no_model(gpt: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await ask(gpt, f"{model_name}:poems")
    with pytest.raises(openai.NotFoundError):
        await ask(gpt, "other:sql")


async def test_an_adapter_costs_what_its_model_does_unless_it_has_a_price(
    site: GatewaySite, gpt: openai.AsyncOpenAI
) -> None:
    own = replace(price, output_nanousd_per_million=7 * price.output_nanousd_per_million)
    site.database.store.create(
        PriceBook(
            id=make_id("prb", 2),
            name="adapters",
            create_time=0.0,
            effective_time=0.0,
            prices={f"{model_name}:tone": own},
        )
    )
    await ask(gpt, model_name)
    await ask(gpt, f"{model_name}:sql")
    plain, adapted = await site.settlements(2)
    assert (plain.model, adapted.model) == (model_name, model_name)
    last = adapted
    for asked in count(3):
        if last.model == f"{model_name}:tone":
            break
        await ask(gpt, f"{model_name}:tone")  # until the gateway has seen its price
        last = (await site.settlements(asked))[-1]
    assert plain.amount_nanousd == adapted.amount_nanousd
    usage = last.usage
    more = (usage.completion_tokens * 6 * price.output_nanousd_per_million) // 1_000_000
    assert last.amount_nanousd is not None
    assert plain.amount_nanousd is not None
    assert last.amount_nanousd - plain.amount_nanousd == more


async def test_a_key_may_be_for_an_adapter_alone(
    site: GatewaySite, gpt: openai.AsyncOpenAI
) -> None:
    key = site.database.store.get(ApiKey, make_id("key", 1))
    site.database.store.update(replace(key, models=(f"{model_name}:sql",)))
    await listing(gpt, f"{model_name}:sql")
    assert await ask(gpt, f"{model_name}:sql") == f"{model_name}:sql"
    for refused in (model_name, f"{model_name}:tone"):
        with pytest.raises(openai.PermissionDeniedError):
            await ask(gpt, refused)
