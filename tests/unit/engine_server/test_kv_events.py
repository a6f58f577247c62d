"""Routers follow what the prefix cache holds, and a tenant's part of it can be forgotten."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.base.prefix_hash import block_hashes
from headrace.engine_server.kv_events import KvEventRoutes
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.routes import Call
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.sim import engine_process

key = b"k" * 32
prompt = tuple(range(40))  # two blocks of 16, and what is left


class Cache:
    """The routes over a real engine process."""

    def __init__(self, service: ModelService) -> None:
        self.service = service
        self.routes = {route.path: route for route in KvEventRoutes(service.engine).routes()}

    async def ask(self, path: str, query: str = "", body: bytes = b"") -> Any:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        call = Call({"query_string": query.encode()}, receive, send, {})
        await self.routes[path].handler(call)
        return json.loads(sent[1]["body"])

    async def events(self, since: int, **query: object) -> Any:
        fields = "".join(f"&{name}={value}" for name, value in query.items())
        return await self.ask("/internal/kv_events", f"since={since}{fields}")


@pytest.fixture
def run_cache(byte_model: Path, engine_config: EngineConfig) -> Any:
    @asynccontextmanager
    async def run() -> AsyncIterator[Cache]:
        config = msgspec.structs.replace(engine_config, prefix_key=key)
        service = ModelService(
            ServiceConfig(byte_model, "bytes", config),
            SystemClock(),
            command=engine_process.command(),
        )
        try:
            await service.start()
            await service.engine.wait_ready()
            yield Cache(service)
        finally:
            await service.close()

    return run


async def generate(cache: Cache, make_submit: Any, request_id: str, salt: str) -> int:
    """Answer the prompt; how many of its tokens were cached."""
    submit = msgspec.structs.replace(
        make_submit(request_id, max_tokens=1, prompt=prompt), cache_salt=salt
    )
    stream = cache.service.engine.submit(submit)
    (output, *_) = await stream.next()
    return int(output.cached_tokens)


async def test_events_name_the_blocks_as_the_router_computes_them(
    run_cache: Any, make_submit: Any
) -> None:
    async with run_cache() as cache:
        assert (await cache.events(0))["events"] == []
        await generate(cache, make_submit, "a", "tenant")
        answer = await cache.events(0, wait_s=20)
        expected = block_hashes(key, "fake", "tenant", prompt, answer["block_size_tokens"])
        assert [event["type"] for event in answer["events"]] == ["stored"]
        assert answer["events"][0]["hashes"] == [name.hex() for name in expected]
        assert answer["next"] == 2
        assert (await cache.events(2, epoch=answer["epoch"]))["events"] == []
        again = await cache.events(2, epoch="another")
        assert again["reset"]
        assert again["events"][0]["hashes"] == [name.hex() for name in expected]


async def test_a_tenants_part_is_forgotten_and_said_to_be(run_cache: Any, make_submit: Any) -> None:
    async with run_cache() as cache:
        for salt in ("a", "b"):
            assert await generate(cache, make_submit, salt, salt) == 0
        await cache.ask("/internal/reset_cache", body=b'{"salt":"a"}')
        assert await generate(cache, make_submit, "a2", "a") == 0
        assert await generate(cache, make_submit, "b2", "b") == 32
        answer = await cache.events(4, wait_s=20)
        assert answer["events"][0]["type"] == "removed"
        assert len(answer["events"][0]["hashes"]) == 2
