"""Engines that tell what they used at the end alone, and callers who do not stay until then."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from headrace.http.asgi import EventStream, Receive, Scope, Send, read_body
from headrace.ledger.reservation import Outcome, Settlement, UsageSource
from headrace.protocol.sse import done_event
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, serving

body = {
    "model": model_name,
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
words = ("one", "two", "three")


class UsageAtTheEnd:
    """Writes its words, then waits at `gate` before its usage and the end marker."""

    def __init__(self, finish: Sequence[str | None] = (None, None, None, "stop")) -> None:
        self.finish = finish
        self.gate = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            return
        await read_body(receive, 1 << 20)
        out = EventStream(send)
        for word, finish in zip((*words, ""), self.finish, strict=True):
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": finish}
            await out.write(self.event([choice]))
        gate = asyncio.create_task(self.gate.wait())
        leaving = asyncio.create_task(self.disconnected(receive))
        await asyncio.wait((gate, leaving), return_when=asyncio.FIRST_COMPLETED)
        gate.cancel()
        if leaving.done():
            self.left.set()
            return
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        await out.close(self.event([], usage=usage) + done_event)

    @staticmethod
    def event(choices: list[object], **more: object) -> bytes:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        return b"data: " + msgspec.json.encode({**chunk, "choices": choices, **more}) + b"\n\n"

    @staticmethod
    async def disconnected(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@asynccontextmanager
async def answered(
    directory: Path, engine: UsageAtTheEnd
) -> AsyncIterator[tuple[GatewaySite, aiohttp.ClientResponse]]:
    """The answer as far as the whole text is there."""
    async with (
        serving(engine) as address,
        gateway_site(directory, [], addresses=[address], engine="managed") as site,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {site.api_key}"}) as client,
        client.post(f"{site.url}/v1/chat/completions", json=body) as answer,
    ):
        said = b""
        while b'"stop"' not in said:
            said += await answer.content.readany()
        yield site, answer


async def settled(directory: Path, engine: UsageAtTheEnd, *, stays: bool) -> Settlement:
    async with answered(directory, engine) as (site, answer):
        if stays:
            engine.gate.set()
            assert (await answer.read()).endswith(done_event)
        else:
            answer.close()
            await engine.left.wait()
        (settlement,) = await site.settlements(1)
        await site.booked(1)
        assert site.database.ledger.check() == []
        return settlement


async def test_who_leaves_with_the_whole_text_pays_for_it(tmp_path: Path) -> None:
    settlement = await settled(tmp_path, UsageAtTheEnd(), stays=False)
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.COUNTED
    assert settlement.usage.prompt_tokens > 0
    assert settlement.usage.completion_tokens >= len(words)
    assert (settlement.amount_nanousd or 0) >= len(words) * 2_000


async def test_who_stays_pays_for_what_the_engine_counted(tmp_path: Path) -> None:
    settlement = await settled(tmp_path, UsageAtTheEnd(), stays=True)
    assert settlement.outcome is Outcome.FINISHED
    assert settlement.source is UsageSource.ENGINE
    assert (settlement.usage.prompt_tokens, settlement.usage.completion_tokens) == (7, 3)


async def test_a_stream_has_its_headers_before_its_engine_says_anything(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    async with (
        gateway_site(tmp_path, [engine]) as site,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {site.api_key}"}) as client,
        client.post(f"{site.url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200
        first = await answer.content.readany()
        assert first.startswith(b":"), "a comment, which clients skip"
        assert not gate.is_set()
        gate.set()
        assert (await answer.read()).endswith(done_event)
