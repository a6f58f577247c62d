"""The HTTP client against real sockets: streaming, timeouts, cancellation, broken peers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.base.errors import DeadlineExceeded, Unavailable, UpstreamFailed
from headrace.http.client import HttpClient, whole_body_bytes_max

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    yield client
    await client.close()


@asynccontextmanager
async def peer(handler: Handler) -> AsyncIterator[str]:
    """A server that does exactly what `handler` writes, after it has read the headers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_chunks_arrive_as_they_are_sent(client: HttpClient) -> None:
    go_on = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked + b"3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await writer.drain()

    async with peer(handler) as url:
        answer = await client.open("GET", url, headers={}, timeout_s=5)
        async with answer:
            assert await answer.read_chunk(5) == b"one"
            go_on.set()
            assert await answer.read_chunk(5) == b"two"
            assert await answer.read_chunk(5) == b""


async def test_no_listener_is_unavailable(client: HttpClient) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(Unavailable):
        await client.open("GET", f"http://127.0.0.1:{port}", headers={}, timeout_s=5)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 banana\r\n\r\n"])
async def test_a_peer_that_closes_or_babbles_is_upstream_failed(
    client: HttpClient, sent: bytes
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    async with peer(handler) as url:
        with pytest.raises(UpstreamFailed):
            await client.open("GET", url, headers={}, timeout_s=5)


async def test_a_body_that_is_cut_is_upstream_failed(client: HttpClient) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked + b"9\r\nbegun")

    async with peer(handler) as url:
        with pytest.raises(UpstreamFailed):
            await client.fetch("GET", url, headers={}, timeout_s=5, limit_bytes=100)


async def test_a_body_over_its_bound_is_upstream_failed(client: HttpClient) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + b"x" * 50)

    async with peer(handler) as url:
        with pytest.raises(UpstreamFailed):
            await client.fetch("GET", url, headers={}, timeout_s=5, limit_bytes=49)


@pytest.mark.parametrize("before", [b"", chunked])
async def test_silence_is_deadline_exceeded(client: HttpClient, before: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(before)
        await reader.read()  # until the client gives up

    async with peer(handler) as url:
        with pytest.raises(DeadlineExceeded):
            async with await client.open("GET", url, headers={}, timeout_s=0.02) as answer:
                await answer.read_chunk(0.02)


async def test_silence_after_a_chunk_is_timed_by_the_newest_wait(client: HttpClient) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked + b"1\r\nx\r\n")
        await reader.read()

    async with (
        peer(handler) as url,
        await client.open("GET", url, headers={}, timeout_s=60) as answer,
    ):
        assert await answer.read_chunk(60) == b"x"
        with pytest.raises(DeadlineExceeded):  # an earlier timer than the one that is set
            await answer.read_chunk(0.02)


@pytest.mark.parametrize("before", [b"", chunked + b"1\r\nx\r\n"])
async def test_cancelling_closes_the_connection_at_once(client: HttpClient, before: bytes) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(before)
        asked.set()
        await reader.read()
        closed.set()

    async def read_to_the_end(url: str) -> None:
        async with await client.open("GET", url, headers={}, timeout_s=60) as answer:
            while await answer.read_chunk(60):
                pass

    async with peer(handler) as url:
        task = asyncio.create_task(read_to_the_end(url))
        await asked.wait()
        task.cancel()
        await closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_redirects_are_not_followed(client: HttpClient) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n")
        writer.write(b"Content-Length: 0\r\n\r\n")

    async with peer(handler) as url:
        answer = await client.fetch("GET", url, headers={}, timeout_s=5, limit_bytes=100)
    assert answer.status == 302


async def test_a_large_body_arrives_whole(client: HttpClient) -> None:
    body = b"x" * (whole_body_bytes_max + 1)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(body)) == body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with peer(handler) as url:
        answer = await client.fetch(
            "POST", url, headers={}, timeout_s=5, limit_bytes=100, body=body
        )
    assert answer.body == b"ok"
