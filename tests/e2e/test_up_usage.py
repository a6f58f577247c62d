"""The bill is what the engines counted, however requests end."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from headrace.adapters.headrace import HeadraceAdapter
from headrace.adapters.prometheus_text import read_samples
from headrace.sim.child_process import until, wait_until
from headrace.sim.platform_process import PlatformProcess

pytestmark = pytest.mark.e2e

headrace = (sys.executable, "-m", "headrace.cli.main")
model = "smollm2-135m-instruct"
prompt_name = "headrace_engine_prompt_tokens_total"
cached_name = "headrace_engine_cached_tokens_total"
completion_name = "headrace_engine_completion_tokens_total"
running_name = "headrace_engine_running_requests"
finished_count, streamed_count, aborted_count, cancelled_count = 5, 5, 5, 3


@dataclass(frozen=True)
class Tokens:
    prompt: int
    cached: int
    completion: int

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            self.prompt - other.prompt,
            self.cached - other.cached,
            self.completion - other.completion,
        )


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo", "--replicas", "2") as started:
        started.wait_active(2)
        yield started


def engine_sums(platform: PlatformProcess, *names: str) -> dict[str, int]:
    """What all engines say of these metrics, added up."""
    sums = dict.fromkeys(names, 0)
    for replica in platform.replicas():
        request = urllib.request.Request(
            f"{replica.address}/metrics",
            headers=HeadraceAdapter().headers(platform.engine_key(replica)),
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            samples = read_samples(answer.read().decode(), sums)
        for name in sums:
            sums[name] += int(samples[name])
    return sums


def engine_tokens(platform: PlatformProcess) -> Tokens:
    """What all engines counted, by their own metrics."""
    return Tokens(*engine_sums(platform, prompt_name, cached_name, completion_name).values())


def running_count(platform: PlatformProcess) -> int:
    """The requests that engines compute now."""
    return engine_sums(platform, running_name)[running_name]


def usage_total(platform: PlatformProcess) -> dict[str, int]:
    """What `headrace usage --json` says."""
    ended = subprocess.run(
        [*headrace, "usage", "--json", "--data-dir", str(platform.data_dir)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    total = json.loads(ended.stdout)["total"]
    assert isinstance(total, dict)
    return total


def tokens_of(total: dict[str, int]) -> Tokens:
    return Tokens(total["prompt_tokens"], total["cached_tokens"], total["completion_tokens"])


async def ask(client: openai.AsyncOpenAI, number: int) -> None:
    """A request that gets its whole answer."""
    await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Name {number} animals."}],
        max_tokens=12 + number,
    )


async def stream(client: openai.AsyncOpenAI, number: int, chunks_max: int) -> None:
    """A request that is read for so many chunks, and then left."""
    chunks = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me a long story about {number} horses."}],
        max_tokens=16 if chunks_max > 100 else 400,
        stream=True,
    )
    count = 0
    async with chunks:
        async for _ in chunks:
            count += 1
            if count >= chunks_max:
                return


async def poem(client: openai.AsyncOpenAI, number: int) -> None:
    """A request that takes long."""
    await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Write a poem about {number} ships."}],
        max_tokens=4_000,
        extra_body={"ignore_eos": True},
    )


async def leave(asking: asyncio.Task[None]) -> None:
    """Cancel a request before its answer."""
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()


async def refused(client: openai.AsyncOpenAI) -> None:
    """A request that never was one."""
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "x"}], max_tokens=-1
        )


async def test_usage_agrees_with_the_engines_to_the_token(platform: PlatformProcess) -> None:
    # The platform's own first request is in the ledger a moment after its answer.
    await until(lambda: usage_total(platform)["requests"] == 1)
    engines_before, usage_before = engine_tokens(platform), usage_total(platform)
    async with openai.AsyncOpenAI(
        base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
    ) as client:
        poems = [asyncio.create_task(poem(client, number)) for number in range(cancelled_count)]
        await until(lambda: running_count(platform) >= cancelled_count)
        await asyncio.gather(
            *(ask(client, number) for number in range(finished_count)),
            *(stream(client, number, 1_000) for number in range(streamed_count)),
            *(stream(client, number, 3 + number) for number in range(aborted_count)),
            *(leave(task) for task in poems),
            refused(client),
        )
    count = finished_count + streamed_count + aborted_count + cancelled_count
    expected = usage_before["requests"] + count
    await until(lambda: usage_total(platform)["requests"] >= expected)
    usage = usage_total(platform)

    assert usage["requests"] == expected
    assert usage["finished"] - usage_before["finished"] == finished_count + streamed_count
    assert usage["aborted"] - usage_before["aborted"] == aborted_count + cancelled_count
    assert usage["failed"] == usage_before["failed"] == 0
    assert tokens_of(usage) - tokens_of(usage_before) == engine_tokens(platform) - engines_before


async def test_every_parameter_reaches_the_engine_through_the_gateway(
    platform: PlatformProcess,
) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
    ) as client:
        arguments: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": "Yes or no?"}],
            "temperature": 0,
            "max_tokens": 8,
            "logprobs": True,
            "top_logprobs": 2,
            "extra_body": {"guided_choice": ["indigo"]},
        }
        (choice,) = (await client.chat.completions.create(**arguments)).choices
        assert choice.message.content == "indigo"
        assert choice.logprobs is not None
        listed = choice.logprobs.content or []
        assert b"".join(bytes(token.bytes or []) for token in listed) == b"indigo"
        streamed: list[Any] = []
        async for chunk in await client.chat.completions.create(**arguments, stream=True):
            if chunk.choices and chunk.choices[0].logprobs is not None:
                streamed += chunk.choices[0].logprobs.content or []
        assert streamed == listed
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "x"}],
                extra_body={"guided_regex": "[0-9"},
            )
        assert refused.value.param == "guided_regex"


def test_an_hour_that_ended_is_reconciled_and_listed(platform: PlatformProcess) -> None:
    def reports() -> list[dict[str, Any]]:
        words = [*headrace, "reconcile", "--list", "--json", "--data-dir", str(platform.data_dir)]
        ended = subprocess.run(words, capture_output=True, timeout=60, check=True)
        found = json.loads(ended.stdout)["items"]
        assert isinstance(found, list)
        return found

    wait_until(lambda: bool(reports()))  # the hour before the start is due at once
    newest = reports()[0]
    assert newest["end_time"] - newest["begin_time"] == 3600.0
    assert newest["unexplained_tokens"] == 0
