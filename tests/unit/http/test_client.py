"""The HTTP client against real sockets: streaming, timeouts, cancellation, broken peers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from headrace.base.errors import DeadlineExceeded, Unavailable, UpstreamFailed
from headrace.http import client as client_module
from headrace.http.client import HttpClient
from headrace.http.connection import (
    Connection,
    buffer_bytes,
    header_bytes_max,
    joined_body_bytes_max,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    yield client
    await client.close()


@asynccontextmanager
async def peer(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that does exactly what `handler` writes, after it has read the headers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        except asyncio.IncompleteReadError:  # it was closed and not used
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
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


async def test_a_stall_while_it_connects_costs_no_connection(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    clock, connect = loop.time, loop.create_connection

    def stall_and_connect(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(loop, "time", lambda: clock() + client_module.connect_timeout_s_default)
        return connect(*args, **kwargs)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    monkeypatch.setattr(loop, "create_connection", stall_and_connect)
    async with peer(handler) as url:
        _, body = await client.fetch("GET", url, headers={}, timeout_s=60, limit_bytes=100)
    assert body == b"hi"


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


async def test_a_machine_that_is_gone_is_noticed_though_nothing_is_sent() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(handler) as url:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: Connection(lambda _: None), "127.0.0.1", urlsplit(url).port or 0
        )
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        first, interval, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        transport.abort()
    assert first + interval * count == 8


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
    body = b"x" * (joined_body_bytes_max + 1)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(body)) == body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with peer(handler) as url:
        answer = await client.fetch(
            "POST", url, headers={}, timeout_s=5, limit_bytes=100, body=body
        )
    assert answer.body == b"ok"


small = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ask(client: HttpClient, url: str, method: str = "GET") -> bytes:
    answer = await client.fetch(method, url, headers={}, timeout_s=5, limit_bytes=10**6)
    return answer.body


class CountingPeer:
    """Answers each request of a connection in turn, from a list of what to write."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self._answers:
            writer.write(self._answers.pop(0))
            await writer.drain()
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return


async def test_a_connection_is_used_again(client: HttpClient) -> None:
    handler = CountingPeer(small, chunked + b"2\r\nok\r\n0\r\n\r\n", small)
    async with peer(handler) as url:
        assert [await ask(client, url) for _ in range(3)] == [b"ok"] * 3
    assert handler.connections == 1


@pytest.mark.parametrize(
    "first",
    [
        small.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        small.replace(b"1.1", b"1.0"),
        small + small,  # an answer that nobody asked for
        small + b"?",
    ],
)
async def test_a_connection_that_may_not_be_used_again_is_not(
    client: HttpClient, first: bytes
) -> None:
    handler = CountingPeer(first, small)
    async with peer(handler) as url:
        assert [await ask(client, url) for _ in range(2)] == [b"ok"] * 2
    assert handler.connections == 2


async def test_an_answer_that_was_not_read_to_its_end_costs_its_connection(
    client: HttpClient,
) -> None:
    handler = CountingPeer(chunked + b"2\r\nok\r\n", small)
    async with peer(handler) as url:
        async with await client.open("GET", url, headers={}, timeout_s=5) as answer:
            assert await answer.read_chunk(5) == b"ok"
        assert await ask(client, url) == b"ok"
    assert handler.connections == 2


async def test_a_connection_that_was_idle_for_long_is_closed(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = CountingPeer(small, small)
    async with peer(handler) as url:
        await ask(client, url)
        monkeypatch.setattr(client_module, "keep_alive_s", -1.0)
        await ask(client, url)
    assert handler.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_what_changes_nothing_is_asked_again_when_an_old_connection_breaks(
    client: HttpClient, method: str
) -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(small)
        if connections == 1:
            await reader.readuntil(b"\r\n\r\n")  # and no answer

    async with peer(handler) as url:
        await ask(client, url)
        if method == "GET":
            assert await ask(client, url) == b"ok"
        else:
            with pytest.raises(UpstreamFailed):
                await ask(client, url, method)
    assert connections == (2 if method == "GET" else 1)


async def test_a_body_without_a_length_ends_with_its_connection(client: HttpClient) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with peer(handler) as url:
        assert await ask(client, url) == b"all of it"


async def test_words_on_the_way_are_no_answer(client: HttpClient) -> None:
    handler = CountingPeer(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + small)
    async with peer(handler) as url, await client.open(
        "POST", url, headers={}, timeout_s=5, body=b"x"
    ) as answer:  # fmt: skip
        assert (answer.status, answer.header("X"), answer.header("content-LENGTH")) == (
            200,
            None,
            "2",
        )
        assert await answer.read_all(100, 5) == b"ok"


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * header_bytes_max + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_answers_that_cannot_be_read_are_upstream_failed(
    client: HttpClient, sent: bytes
) -> None:
    async with peer(CountingPeer(sent)) as url:
        with pytest.raises(UpstreamFailed):
            await ask(client, url)


async def test_a_server_that_sends_faster_than_it_is_read_has_to_wait(client: HttpClient) -> None:
    count = 200
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * buffer_bytes))
        for _ in range(count):
            writer.write(bytes(buffer_bytes))
            await writer.drain()
            sent += 1

    async with peer(handler) as url, await client.open(
        "GET", url, headers={}, timeout_s=5
    ) as answer:  # fmt: skip
        connection = answer._open
        for _ in range(100_000):
            if connection._is_paused:
                break
            await asyncio.sleep(0)
        assert connection._buffered_bytes < 20 * buffer_bytes
        assert sent < count
        assert len(await answer.read_all(count * buffer_bytes, 60)) == count * buffer_bytes


@pytest.mark.parametrize("value", ["a\r\nX-Admin: yes", "a\nb", "a\rb"])
async def test_no_header_breaks_out_of_its_line(client: HttpClient, value: str) -> None:
    with pytest.raises(ValueError, match="one line each"):
        await client.open("GET", "http://127.0.0.1:9", headers={"X": value}, timeout_s=5)


async def test_tls_servers_are_asked_and_strangers_among_them_are_not(client: HttpClient) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with peer(CountingPeer(small), context) as url:
        with pytest.raises(Unavailable):
            await ask(client, url)
        authority.configure_trust(client._tls_context())
        assert await ask(client, url) == b"ok"


async def test_closing_the_client_ends_what_is_under_way() -> None:
    asked = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    client = HttpClient()
    async with peer(handler) as url:
        task = asyncio.create_task(ask(client, url))
        await asked.wait()
        await client.close()
        with pytest.raises(UpstreamFailed):
            await task
