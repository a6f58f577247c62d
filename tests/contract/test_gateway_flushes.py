"""Each chunk of an engine reaches the client before the engine makes the next one, also over TLS.

The engine waits for the client after each chunk, so a gateway that kept one back would end it all.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme

from headrace.http.asgi import Receive, Scope, Send, read_body, send_bytes
from headrace.http.server import address_of, bind, serve
from headrace.http.tls import Certificate
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.responses import Usage
from headrace.protocol.sse import done_event
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, serving

chunks_count = 30


class SteppingEngine:
    """Sends one chunk for each permission."""

    def __init__(self) -> None:
        self.permitted = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        await read_body(receive, 10**6)
        if scope["path"] != "/v1/chat/completions":  # the gateway asks for more than answers
            await send_bytes(send, 404, b"{}", [])
            return
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        chunks = ChunkWriter("chat", "chatcmpl-1", 7, "internal", usage_chunk=True)
        for number in range(chunks_count):
            await self.permitted.acquire()
            text = chunks.text(f"word-{number};", Usage.of(3, 0, number + 1))
            await send({"type": "http.response.body", "body": text, "more_body": True})
        usage = Usage.of(3, 0, chunks_count)
        ending = chunks.finish("stop", usage) + chunks.usage(usage) + done_event
        await send({"type": "http.response.body", "body": ending, "more_body": False})


@asynccontextmanager
async def over_tls(site: GatewaySite, directory: Path) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """The gateway's own TLS listener, and what trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain, key = directory / "chain.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(chain)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    sock, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(
        serve(
            site.gateway.app,
            sock,
            drain_timeout_s=5.0,
            stop=stop,
            certificate=Certificate(chain, key),
        )
    )
    try:
        yield f"https://localhost:{address_of(sock)[1]}", trust
    finally:
        stop.set()
        await task


@pytest.mark.parametrize("tls", [False, True])
async def test_each_chunk_is_there_before_the_next_is_made(tmp_path: Path, tls: bool) -> None:
    engine = SteppingEngine()
    async with serving(engine) as url, gateway_site(tmp_path, [], addresses=[url]) as site:
        if tls:
            async with over_tls(site, tmp_path) as (address, trust):
                await read_in_step(site, engine, address, trust)
        else:
            await read_in_step(site, engine, site.url, None)


async def read_in_step(
    site: GatewaySite, engine: SteppingEngine, url: str, trust: ssl.SSLContext | None
) -> None:
    """Permit each chunk when the one before it was read."""
    headers = {"Authorization": f"Bearer {site.api_key}"}
    body = {
        "model": model_name,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    connector = aiohttp.TCPConnector(ssl=True if trust is None else trust)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as client:
        engine.permitted.release()
        async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            read = b""
            for number in range(chunks_count):
                while f"word-{number};".encode() not in read:
                    data = await answer.content.readany()
                    assert data, "the stream ended early"
                    read += data
                assert f"word-{number + 1};".encode() not in read
                engine.permitted.release()
            read += await answer.content.read()
    assert read.endswith(done_event)
