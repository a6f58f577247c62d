"""Engines that answer 200 and say nothing: asked elsewhere, charged to nobody, and never a 200."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.http.asgi import App, Receive, Scope, Send, read_body, send_bytes
from headrace.ledger.reservation import Outcome, UsageSource
from headrace.protocol.sse import done_event
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, serving


@asynccontextmanager
async def connected(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hello"}], **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


def answering(content_type: bytes, body: bytes, asked: list[str]) -> App:
    """An engine that has this one answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await read_body(receive, 10**6)
            asked.append(scope["path"])
            await send_bytes(send, 200, body, [(b"content-type", content_type)])

    return answer


nothing = [
    (b"application/json", b""),
    (b"application/json", b"{}"),
    (b"application/json", b'{"choices":[]}'),
    (b"text/html", b"<html>It works!</html>"),
    (b"text/event-stream", b""),
    (b"text/event-stream", done_event),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("content_type", "body"), nothing)
async def test_a_200_with_nothing_in_it_is_no_answer_and_another_replica_is_asked(
    tmp_path: Path, content_type: bytes, body: bytes, stream: bool
) -> None:
    asked: list[str] = []
    empty = answering(content_type, body, asked)
    engine = FakeEngine()
    async with serving(empty) as url, gateway_site(tmp_path, [engine], addresses=[url]) as site:
        async with connected(site) as client:
            while "/v1/chat/completions" not in asked:
                status, said = await chat(client, stream=stream)
                assert status == 200
                assert b"choices" in said
        settled = await site.settlements(len(engine.seen))
    assert {each.outcome for each in settled} == {Outcome.FINISHED}
    assert {each.source for each in settled} == {UsageSource.ENGINE}


async def test_a_200_with_nothing_in_it_costs_nothing(tmp_path: Path) -> None:
    empty = answering(b"application/json", b"{}", [])
    async with serving(empty) as url, gateway_site(tmp_path, [], addresses=[url]) as site:
        async with connected(site) as client:
            assert [(await chat(client, stream=each))[0] for each in (True, False)] == [502, 502]
        settled = await site.settlements(2)
    assert [(each.outcome, each.amount_nanousd) for each in settled] == [(Outcome.FAILED, 0)] * 2
