"""What does not fit a context is refused, or capped where the engine would not see to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name
from headrace.spec.models import ModelVersion

context_length = 4096
words = [{"role": "user", "content": "Hello"}]
chat_path, completion_path = "/v1/chat/completions", "/v1/completions"


@asynccontextmanager
async def declared(
    directory: Path, engine: str
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientSession]]:
    """A model whose operator has declared its context, and a client of it."""
    fake = FakeEngine(counts=False, context_length=context_length)
    async with gateway_site(directory, [fake], engine=engine) as site:
        (version,) = site.database.store.list(ModelVersion)
        site.database.store.update(msgspec.structs.replace(version, context_length=context_length))
        await site.gateway.follower.load()
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:
            yield site, client


def sent_fields(site: GatewaySite, number: int) -> dict[str, Any]:
    """What the engine got as its n-th request."""
    return msgspec.json.decode(site.engines[0].seen[number].body, type=dict[str, Any])


@pytest.mark.parametrize("engine", ["headrace", "vllm", "transformers"])
@pytest.mark.parametrize(
    ("path", "fields", "prompt_tokens"),
    [
        (chat_path, {"messages": words, "max_tokens": context_length}, 1),
        (chat_path, {"messages": words, "max_completion_tokens": 10**6, "stream": True}, 1),
        (completion_path, {"prompt": "Hello", "max_tokens": context_length}, 1),
        (completion_path, {"prompt": [1] * 4000, "max_tokens": 97}, 4000),
        (completion_path, {"prompt": [1] * 4096}, 4096),
    ],
)
async def test_a_limit_beyond_the_context_is_refused_before_the_engine_is_asked(
    tmp_path: Path, engine: str, path: str, fields: dict[str, object], prompt_tokens: int
) -> None:
    async with declared(tmp_path, engine) as (site, client):
        async with client.post(path, json={"model": model_name, **fields}) as answer:
            error = (await answer.json())["error"]
            assert answer.status == 400, error
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert f"holds {context_length} tokens" in error["message"]
        assert error["prompt_tokens"] == prompt_tokens
        assert site.engines[0].seen == []
        # Nothing is set aside for it either, and the next one is answered.
        good = {"model": model_name, "messages": words, "max_tokens": 8}
        async with client.post(chat_path, json=good) as answer:
            assert answer.status == 200
        (settlement,) = await site.settlements(1)
        assert settlement.usage.completion_tokens > 0


async def test_an_engine_that_checks_nothing_is_sent_what_the_prompt_leaves_and_it_is_said(
    tmp_path: Path,
) -> None:
    async with declared(tmp_path, "transformers") as (site, client):
        caps = []
        for number, limit in enumerate(({}, {"max_tokens": 4095}, {"max_completion_tokens": 4095})):
            asked = {"model": model_name, "messages": words, **limit}
            async with client.post(chat_path, json=asked) as answer:
                assert answer.status == 200, await answer.text()
                caps.append(int(answer.headers["x-headrace-max-tokens"]))
            sent = sent_fields(site, number)
            assert sent["max_tokens"] == caps[-1]
            assert "max_completion_tokens" not in sent
        assert len(set(caps)) == 1
        assert context_length - 1024 < caps[0] < context_length
        async with client.post(
            chat_path, json={"model": model_name, "messages": words, "max_tokens": 100}
        ) as answer:
            assert answer.status == 200
            assert "x-headrace-max-tokens" not in answer.headers


async def test_an_engine_that_checks_is_sent_what_the_caller_asked(tmp_path: Path) -> None:
    async with declared(tmp_path, "headrace") as (site, client):
        asked = {"model": model_name, "messages": words, "max_tokens": 4095}
        async with client.post(chat_path, json=asked) as answer:
            assert answer.status == 200
            assert "x-headrace-max-tokens" not in answer.headers
        assert sent_fields(site, 0)["max_tokens"] == 4095
