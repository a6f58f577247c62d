"""What a gateway keeps for its callers: responses, files and batches, by OpenAI's own client."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import openai
import pytest

from headrace.ledger.reservation import Outcome, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, pepper
from headrace.spec.platform_token import metrics_token

look_interval_s = 0.02


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        yield site


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=site.api_key, base_url=site.url + "/v1", max_retries=0
    ) as client:
        yield client


def batch_input(count: int, **fields: object) -> bytes:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(count)
    ]
    return "\n".join(json.dumps(line) for line in lines).encode()


async def start(client: openai.AsyncOpenAI, data: bytes) -> str:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    return batch.id


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> openai.types.Batch:
    while True:
        batch = await client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        await asyncio.sleep(look_interval_s)


async def test_a_response_is_kept_and_continued(
    site: GatewaySite, client: openai.AsyncOpenAI
) -> None:
    first = await client.responses.create(model=model_name, input="Hello")
    assert first.output_text == " t0 t1 t2 t3"
    assert (await client.responses.retrieve(first.id)).output_text == first.output_text
    second = await client.responses.create(
        model=model_name, input="And now?", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    sent = json.loads(site.engines[0].seen[-1].body)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    items = [item async for item in client.responses.input_items.list(second.id, limit=2)]
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant", "user"]
    assert len({item.id for item in items}) == 3
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    await client.responses.create(model=model_name, input="So?", previous_response_id=second.id)
    sent = json.loads(site.engines[0].seen[-1].body)["messages"]
    assert len(sent) == 5  # what came before a response stays part of it
    with pytest.raises(openai.NotFoundError) as gone:
        await client.responses.create(model=model_name, input="?", previous_response_id=first.id)
    assert gone.value.param == "previous_response_id"


async def test_a_streamed_response_is_kept_before_it_ends_and_a_private_one_is_not(
    client: openai.AsyncOpenAI,
) -> None:
    kinds: list[str] = []
    async for event in await client.responses.create(model=model_name, input="Hi", stream=True):
        kinds.append(event.type)
        if event.type == "response.completed":
            assert (await client.responses.retrieve(event.response.id)).status == "completed"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    private = await client.responses.create(model=model_name, input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(private.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_disk_costs_a_response_its_place_and_not_its_answer(
    site: GatewaySite,
    client: openai.AsyncOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.gateway.content_store.os", SimpleNamespace(fsync=fail))
        if stream:
            events = await client.responses.create(model=model_name, input="Hi", stream=True)
            last = [event async for event in events][-1]
            assert last.type == "response.completed"
            response = last.response
        else:
            response = await client.responses.create(model=model_name, input="Hi")
    assert response.output_text == " t0 t1 t2 t3"
    with pytest.raises(openai.NotFoundError, match="could not be stored") as gone:
        await client.responses.create(
            model=model_name, input="And now?", previous_response_id=response.id
        )
    assert gone.value.param == "previous_response_id"
    assert "No space left on device" in caplog.text
    headers = {"Authorization": f"Bearer {metrics_token(pepper)}"}
    async with (
        aiohttp.ClientSession(site.url) as reader,
        reader.get("/metrics", headers=headers) as metrics,
    ):
        assert "headrace_gateway_unkept_responses_total 1" in await metrics.text()


async def test_a_file_is_kept_listed_read_and_deleted(client: openai.AsyncOpenAI) -> None:
    data = bytes(range(256)) * 9000 + b"\r\n--"
    file = await client.files.create(file=("data.bin", data), purpose="user_data")
    assert (file.bytes, file.filename) == (len(data), "data.bin")
    assert (await client.files.content(file.id)).content == data
    assert [each.id async for each in client.files.list()] == [file.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)


async def test_a_batch_runs_at_half_the_price_and_its_failures_stand_apart(
    site: GatewaySite, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": "Hello"}]
    )
    (whole,) = await site.settlements(1)
    batch = await ended(client, await start(client, batch_input(3)))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (3, 3)
    assert batch.output_file_id is not None
    lines = (await client.files.content(batch.output_file_id)).text.splitlines()
    answers = {line["custom_id"]: line["response"] for line in map(json.loads, lines)}
    assert sorted(answers) == ["c0", "c1", "c2"]
    assert answers["c1"]["status_code"] == 200
    assert answers["c1"]["body"]["choices"][0]["message"]["content"] == " t0 t1 t2 t3"
    assert batch.error_file_id is None
    settled = (await site.settlements(4))[1:]
    assert {each.amount_nanousd for each in settled} == {(whole.amount_nanousd or 0) // 2}
    assert {each.request_id for each in settled} == {f"{batch.id}.{n}" for n in (1, 2, 3)}

    failing = await ended(client, await start(client, batch_input(1, temperature=-1)))
    assert failing.output_file_id is None
    assert failing.error_file_id is not None
    (line,) = (await client.files.content(failing.error_file_id)).text.splitlines()
    assert json.loads(line)["response"]["status_code"] == 400


async def test_a_batch_of_malformed_lines_fails_and_says_where(
    client: openai.AsyncOpenAI,
) -> None:
    batch = await ended(client, await start(client, batch_input(2) + b"\n{}\n" + batch_input(1)))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.line for error in batch.errors.data] == [3, 4]  # no request; c0 stands twice
    wrong = batch_input(1).replace(b"POST", b"GET") + b"\n" + batch_input(1).replace(b"/v1", b"/v2")
    batch = await ended(client, await start(client, wrong))
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.param for error in batch.errors.data] == ["method", "url"]


async def test_a_cancelled_batch_keeps_what_it_has(
    site: GatewaySite, client: openai.AsyncOpenAI
) -> None:
    gate = asyncio.Event()
    site.engines[0].plan.append(Behaviour())
    site.engines[0].default = Behaviour(gate=gate)
    batch_id = await start(client, batch_input(4))
    await site.settlements(1)
    await client.batches.cancel(batch_id)
    batch = await ended(client, batch_id)
    assert batch.status == "cancelled"
    assert batch.output_file_id is not None
    assert len((await client.files.content(batch.output_file_id)).text.splitlines()) == 1
    rest = (await site.settlements(4))[1:]
    assert {each.outcome for each in rest} == {Outcome.ABORTED}
    assert {each.source for each in rest} == {UsageSource.ENGINE}
    assert all(seen.ended.is_set() for seen in site.engines[0].seen)


async def test_a_batch_goes_on_after_a_restart_and_asks_nothing_twice(tmp_path: Path) -> None:
    engine = FakeEngine()
    gate = asyncio.Event()
    engine.plan.append(Behaviour())
    engine.default = Behaviour(gate=gate)
    async with (
        gateway_site(tmp_path, [engine]) as site,
        openai.AsyncOpenAI(api_key=site.api_key, base_url=site.url + "/v1") as client,
    ):
        batch_id = await start(client, batch_input(3))
        await site.settlements(1)
    engine.default = Behaviour()
    async with (
        gateway_site(tmp_path, [engine]) as site,
        openai.AsyncOpenAI(api_key=site.api_key, base_url=site.url + "/v1") as client,
    ):
        batch = await ended(client, batch_id)
        assert batch.status == "completed"
        assert batch.output_file_id is not None
        lines = (await client.files.content(batch.output_file_id)).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in lines) == ["c0", "c1", "c2"]


async def test_a_batch_waits_for_an_engine_that_is_away(
    site: GatewaySite, client: openai.AsyncOpenAI
) -> None:
    site.engines[0].plan.extend([Behaviour(failure=Failure.STATUS, status=503)] * 1)
    batch = await ended(client, await start(client, batch_input(1)))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 1
