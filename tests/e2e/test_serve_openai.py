"""The official client against `headrace serve`, unchanged, with a real model."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from headrace.sim.child_process import until, wait_until
from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
count_up: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Count from one to twenty in words."}
]


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    with ServeProcess.start(model, "--kv-tokens", "8192") as process:
        yield process


@pytest.fixture
def client(served: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(served: ServeProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def metric(served: ServeProcess, name: str) -> float:
    with urllib.request.urlopen(f"{served.url}/metrics") as answer:
        text = answer.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
    return float(line.split()[1])


async def until_metric(served: ServeProcess, name: str, wanted: float) -> None:
    """Return once the engine says so; the test's own timeout bounds this."""
    await until(lambda: metric(served, name) == wanted)


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name the capital of France."}],
        temperature=0,
        max_tokens=30,
    )
    (choice,) = completion.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in ("stop", "length")
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 10
    assert completion.usage.total_tokens == (
        completion.usage.prompt_tokens + completion.usage.completion_tokens
    )


def test_a_stream_says_the_same_as_the_whole_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": model, "messages": count_up, "temperature": 0}
    whole = client.chat.completions.create(**options, max_tokens=60)
    chunks = list(
        client.chat.completions.create(
            **options, max_tokens=60, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert whole.usage is not None
    last_usage = chunks[-1].usage
    assert last_usage is not None
    assert last_usage.completion_tokens == whole.usage.completion_tokens
    assert last_usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_repeated_prompt_is_found_in_the_cache(client: openai.OpenAI) -> None:
    usages = []
    for _ in range(2):
        completion = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Repeat after me: " + "la " * 100}],
            max_tokens=1,
        )
        assert completion.usage is not None
        usages.append(completion.usage)
    details = usages[1].prompt_tokens_details
    assert details is not None
    assert 0 < (details.cached_tokens or 0) < usages[1].prompt_tokens


def test_a_completion_continues_its_prompt(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=model, prompt="One, two, three, four,", max_tokens=8, temperature=0
    )
    assert "five" in completion.choices[0].text


def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": model,
        "prompt": "One, two, three, four,",
        "max_tokens": 40,
        "temperature": 0,
        "stop": ["never said", " six"],
    }
    completion = client.completions.create(**options)
    assert completion.choices[0].finish_reason == "stop"
    assert "five" in completion.choices[0].text
    assert "six" not in completion.choices[0].text
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == completion.choices[0].text


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    texts = [
        client.chat.completions.create(
            model=model, messages=count_up, temperature=1.0, seed=seed, max_tokens=30
        )
        .choices[0]
        .message.content
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [card.id for card in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_errors_are_the_clients_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-17", messages=count_up)
    assert unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=model, messages=[])
    assert empty.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(model=model, messages=count_up, n=129)
    assert unsupported.value.param == "n"
    with pytest.raises(openai.BadRequestError) as negative:
        client.chat.completions.create(model=model, messages=count_up, max_tokens=-5)
    assert negative.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="word " * 20_000, max_tokens=5)
    assert long.value.code == "context_length_exceeded"
    assert isinstance(long.value.body, dict)
    assert long.value.body["max_model_len"] == 8192
    assert long.value.body["prompt_tokens"] > 8192
    assert long.value.body["max_tokens"] == 5


@pytest.mark.parametrize(
    ("size_bytes", "status", "code"),
    [(10_000_000, 400, "context_length_exceeded"), (20_000_000, 413, "payload_too_large")],
)
def test_a_body_of_many_megabytes_is_refused_and_explained(
    served: ServeProcess, size_bytes: int, status: int, code: str
) -> None:
    request = urllib.request.Request(
        f"{served.url}/v1/completions",
        json.dumps({"model": model, "prompt": "x" * size_bytes}).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        assert answer.code == status
        assert json.loads(answer.read())["error"]["code"] == code


def test_closing_a_stream_frees_its_blocks(client: openai.OpenAI, served: ServeProcess) -> None:
    stream = client.chat.completions.create(
        model=model,
        messages=count_up,
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _ in range(3):
        next(stream)
    assert metric(served, "headrace_engine_running_requests") == 1
    stream.close()
    wait_until(lambda: metric(served, "headrace_engine_running_requests") == 0)
    wait_until(lambda: metric(served, "headrace_engine_kv_usage_ratio") == 0)


async def test_a_client_that_gives_up_waiting_frees_its_blocks(
    async_client: openai.AsyncOpenAI, served: ServeProcess
) -> None:
    waiting = asyncio.create_task(
        async_client.chat.completions.create(
            model=model, messages=count_up, max_tokens=4000, extra_body={"ignore_eos": True}
        )
    )
    await until_metric(served, "headrace_engine_running_requests", 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until_metric(served, "headrace_engine_kv_usage_ratio", 0)


async def test_a_client_that_leaves_during_prefill_or_in_the_queue_frees_its_blocks(
    async_client: openai.AsyncOpenAI, served: ServeProcess
) -> None:
    def ask(seed: int) -> "asyncio.Task[Any]":
        words = " ".join(str(seed * 10_000 + number) for number in range(1000))  # 5,000 tokens
        return asyncio.create_task(
            async_client.completions.create(model=model, prompt=words, max_tokens=2000)
        )

    produced = metric(served, "headrace_engine_completion_tokens_total")
    prefills = ask(1)
    await until_metric(served, "headrace_engine_running_requests", 1)
    waits = ask(2)
    await until_metric(served, "headrace_engine_waiting_requests", 1)
    waits.cancel()
    await until_metric(served, "headrace_engine_waiting_requests", 0)
    prefills.cancel()
    await until_metric(served, "headrace_engine_running_requests", 0)
    await until_metric(served, "headrace_engine_kv_usage_ratio", 0)
    assert metric(served, "headrace_engine_completion_tokens_total") == produced
    await asyncio.gather(prefills, waits, return_exceptions=True)


async def test_many_requests_at_once_get_the_answers_they_would_get_alone(
    async_client: openai.AsyncOpenAI, served: ServeProcess
) -> None:
    async def ask(number: int) -> str:
        stream = await async_client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Say something about the number {number}."}],
            temperature=0.8,
            seed=number,
            max_tokens=24,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return "".join(pieces)

    together = await asyncio.gather(*map(ask, range(32)))
    alone = [await ask(number) for number in (0, 13, 31)]
    assert [together[0], together[13], together[31]] == alone


def test_the_bandwidth_that_steps_reach_and_the_memory_plan_are_told(
    client: openai.OpenAI, served: ServeProcess
) -> None:
    client.chat.completions.create(model=model, messages=count_up, max_tokens=8)
    assert metric(served, "headrace_engine_achieved_bytes_per_second") > 50e6
    planned = metric(served, 'headrace_engine_planned_memory_bytes{part="weights"}')
    assert 50e6 < planned < 500e6


def test_usage_in_answers_and_metrics_agree(client: openai.OpenAI, served: ServeProcess) -> None:
    names = {kind: f"headrace_engine_{kind}_tokens_total" for kind in ("prompt", "completion")}
    before = {kind: metric(served, name) for kind, name in names.items()}
    used = {"prompt": 0, "completion": 0}
    for stop in (None, "two", "three"):
        completion = client.chat.completions.create(
            model=model, messages=count_up, temperature=0, max_tokens=40, stop=stop
        )
        assert completion.usage is not None
        used["prompt"] += completion.usage.prompt_tokens
        used["completion"] += completion.usage.completion_tokens
    for kind, name in names.items():
        assert metric(served, name) - before[kind] == used[kind]
