"""A stream's headers go out as soon as its request is admitted and taken, whenever its first token
comes; an engine that refuses at once is still heard."""

import asyncio
from pathlib import Path

import aiohttp

from headrace.base.clock import SystemClock
from headrace.base.errors import InvalidRequest, UpstreamFailed
from headrace.gateway.forwarding import Timeouts
from headrace.http.asgi import Receive, Scope, Send, read_body, send_json
from headrace.ledger.reservation import Outcome
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.errors import error_body, error_event
from headrace.protocol.sse import done_event, heartbeat
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, serving

never = Timeouts(headers_grace_s=3_600.0)
body = {"model": model_name, "messages": [{"role": "user", "content": "hi"}], "stream": True}
path = "/v1/chat/completions"


class HeadFirst:
    """An engine that sends its response's head at once, and nothing more until `gate` opens."""

    def __init__(self, *, fails: bool = False) -> None:
        self.gate = asyncio.Event()
        self._fails = fails

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        if scope["path"] != path:
            await send_json(send, 404, error_body(InvalidRequest("nothing of the kind")))
            return
        await read_body(receive, 1_000_000)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await self.gate.wait()
        await send({"type": "http.response.body", "body": self._rest(), "more_body": False})

    def _rest(self) -> bytes:
        if self._fails:
            return error_event(UpstreamFailed("too late to refuse"))
        writer = ChunkWriter("chat", "id", 0, "fake", usage_chunk=False)
        return writer.opening() + writer.text("token") + writer.finish("stop") + done_event


def connected(site: GatewaySite) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.url, headers={"Authorization": f"Bearer {site.api_key}"})


async def test_an_engine_that_took_the_request_lets_the_headers_out(tmp_path: Path) -> None:
    engine = HeadFirst()
    async with (
        serving(engine) as url,
        gateway_site(tmp_path, [], addresses=[url], timeouts=never) as site,
        connected(site) as client,
        client.post(path, json=body) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert await answer.content.readuntil(b"\n\n") == heartbeat
        engine.gate.set()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_an_engine_that_says_nothing_holds_no_headers_back(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        gateway_site(tmp_path, [FakeEngine(default=Behaviour(gate=gate))]) as site,
        connected(site) as client,
        client.post(path, json=body) as answer,
    ):
        assert answer.status == 200
        assert await answer.content.readuntil(b"\n\n") == heartbeat
        gate.set()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_request_that_waits_for_a_place_has_its_headers(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        site.limit_places(1)
        async with client.post(path, json=body) as first, client.post(path, json=body) as second:
            assert (first.status, second.status, len(engine.seen)) == (200, 200, 1)
            gate.set()
            for answer in (first, second):
                assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_an_engine_that_refuses_at_once_is_heard(tmp_path: Path) -> None:
    error = InvalidRequest("the prompt is too long")
    engine = FakeEngine(default=Behaviour(failure=Failure.STATUS, status=400, error=error))
    async with (
        gateway_site(tmp_path, [engine], timeouts=never) as site,
        connected(site) as client,
        client.post(path, json=body) as answer,
    ):
        assert answer.status == 400
        assert b"too long" in await answer.content.read()


async def test_what_fails_after_the_headers_is_an_event(tmp_path: Path) -> None:
    engine = HeadFirst(fails=True)
    async with (
        serving(engine) as url,
        gateway_site(tmp_path, [], addresses=[url], timeouts=never) as site,
        connected(site) as client,
        client.post(path, json=body) as answer,
    ):
        assert answer.status == 200
        engine.gate.set()
        said = await answer.content.read()
        (settlement,) = await site.settlements(1)
    assert b'"error"' in said
    assert b"[DONE]" not in said
    assert settlement.outcome is Outcome.FAILED


async def test_a_replica_that_breaks_after_its_head_is_replaced_unseen(tmp_path: Path) -> None:
    engine, spare = HeadFirst(fails=True), FakeEngine()
    async with (
        serving(engine) as url,
        gateway_site(tmp_path, [spare], addresses=[url], timeouts=never) as site,
        connected(site) as client,
    ):
        engine.gate.set()
        for endpoint in site.gateway.endpoints:  # the spare is asked second
            if endpoint.spec.address != url:
                endpoint.breaker.fail(SystemClock().monotonic_s() + 100.0, is_probe=False)
                endpoint.follow_health()
        async with client.post(path, json=body) as answer:
            said = await answer.content.read()
        (settlement,) = await site.settlements(1)
    assert said.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in said
    assert (settlement.outcome, len(spare.seen)) == (Outcome.FINISHED, 1)
