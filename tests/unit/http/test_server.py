import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest

from headrace.base.errors import ClientClosed, ConfigurationError
from headrace.http import asgi, server, server_connection


@asynccontextmanager
async def serving(
    app: asgi.App, *, drain_timeout_s: float = 30, on_drain: Callable[[], None] | None = None
) -> AsyncIterator[tuple[int, asyncio.Event, "asyncio.Task[None]"]]:
    sock = server.bind("127.0.0.1", 0)
    port = server.address_of(sock)[1]
    stop = asyncio.Event()
    task = asyncio.create_task(
        server.serve(app, sock, drain_timeout_s=drain_timeout_s, stop=stop, on_drain=on_drain)
    )
    try:
        yield port, stop, task
    finally:
        stop.set()
        await task


@asynccontextmanager
async def connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def connect_until_refused(port: int) -> None:
    while True:
        async with connection(port):
            pass


async def hello(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    body = await asgi.read_body(receive, 1000)
    await asgi.send_json(send, 200, body or b'"hello"')


def get(path: bytes = b"/", headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n"


async def test_an_app_is_served() -> None:
    async with serving(hello) as (port, _, _), connection(port) as (reader, writer):
        writer.write(get(headers=b"Connection: close\r\n"))
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'"hello"')


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with closing(server.bind("127.0.0.1", 0)) as sock:
        port = server.address_of(sock)[1]
        with pytest.raises(ConfigurationError, match=f"port {port}: another process listens"):
            server.bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no such host", 0)])
def test_an_impossible_address_is_a_setup_error(host: str, port: int) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot listen on|no port"):
        server.bind(host, port)


def test_loopback_hosts_are_known() -> None:
    assert all(map(server.is_loopback, ("127.0.0.1", "127.8.0.1", "localhost", "::1")))
    others = ("0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example", "127.example", "")
    assert not any(map(server.is_loopback, others))


async def test_draining_finishes_a_running_request_and_accepts_no_other() -> None:
    entered, proceed, draining = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        entered.set()
        await proceed.wait()
        await asgi.send_json(send, 200, b'"done"')

    async with serving(slow, on_drain=draining.set) as (port, stop, task):
        async with connection(port) as (reader, writer):
            writer.write(get())
            await entered.wait()
            stop.set()
            await draining.wait()
            with pytest.raises(ConnectionError):
                await connect_until_refused(port)
            proceed.set()
            assert (await reader.read()).endswith(b'"done"')
        await task


async def test_a_connection_that_was_accepted_as_the_drain_began_ends_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: asyncio.Queue[tuple[server_connection.ServerConnection, asyncio.BaseTransport]]
    accepted = asyncio.Queue()
    make = server_connection.ServerConnection.connection_made
    monkeypatch.setattr(
        server_connection.ServerConnection,
        "connection_made",
        lambda self, transport: accepted.put_nowait((self, transport)),
    )
    async with serving(hello) as (port, stop, task), connection(port) as (reader, writer):
        one, transport = await accepted.get()
        stop.set()
        await task  # it knows of no connection
        make(one, transport)
        writer.write(get())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" in head
        assert await reader.read() == b'"hello"'


async def test_a_head_that_begins_while_the_server_drains_keeps_it_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_connection, "header_timeout_s", 3600.0)
    began = asyncio.Event()
    begin = server_connection.ServerConnection.shutdown

    def shutdown(connection: server_connection.ServerConnection) -> None:
        begin(connection)
        began.set()

    monkeypatch.setattr(server_connection.ServerConnection, "shutdown", shutdown)
    async with serving(hello, drain_timeout_s=3600) as (port, stop, task):
        async with connection(port) as (reader, writer):
            writer.write(get())
            await reader.readuntil(b'"hello"')
            stop.set()
            await began.wait()
            writer.write(b"GET / HTTP/1.1\r\nHost")
            assert await reader.read() == b""
        await task


async def test_a_connection_without_a_request_ends_with_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_connection, "last_request_timeout_s", 3600.0)
    monkeypatch.setattr(server, "cut_timeout_s", 3600.0)
    async with serving(hello, drain_timeout_s=0) as (port, stop, task):
        async with connection(port) as (reader, writer):
            writer.write(get())
            await reader.readuntil(b'"hello"')
            stop.set()
            assert await reader.read() == b""
        await task


async def test_what_outlives_the_drain_timeout_is_cut() -> None:
    entered, cut = asyncio.Event(), asyncio.Event()

    async def endless(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        stream = asgi.EventStream(send)
        await stream.write(b"data: 1\n\n")
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    async with serving(endless, drain_timeout_s=0) as (port, stop, task):
        async with connection(port) as (reader, writer):
            writer.write(get())
            await entered.wait()
            stop.set()
            await cut.wait()
            assert b"data: 1" in await reader.read()
        await task


async def test_each_pipelined_request_learns_that_the_client_left() -> None:
    entered, gone = asyncio.Event(), asyncio.Event()

    async def waits(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await asgi.read_body(receive, 1000)
        entered.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(waits) as (port, _, _):
        async with connection(port) as (_, writer):
            writer.write(get() + get())
            await entered.wait()
        await gone.wait()


async def test_endless_pipelining_is_cut_off() -> None:
    async def waits(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(waits) as (port, _, _), connection(port) as (reader, writer):
        writer.write(get() * 100)
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: none\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_like_any_wrong_request(sent: bytes) -> None:
    async with serving(hello) as (port, _, _), connection(port) as (reader, writer):
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "malformed_request"
    assert "well-formed" in error["message"]


async def test_endless_headers_are_refused() -> None:
    async with serving(hello) as (port, _, _), connection(port) as (reader, writer):
        writer.write(
            get(headers=b"X-Long: " + b"x" * 2 * server_connection.header_bytes_max + b"\r\n")
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost"])
async def test_a_connection_that_sends_no_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server_connection, "header_timeout_s", 0)
    async with serving(hello) as (port, _, _), connection(port) as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


async def endless_stream(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    async with asgi.DisconnectScope(receive):
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})


async def test_a_client_that_stops_reading_is_cut_and_its_request_learns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_connection, "stopped_reader_timeout_s", 0.02)
    ended = asyncio.Event()

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        with pytest.raises(ClientClosed):
            await endless_stream(scope, receive, send)
        ended.set()

    async with serving(app) as (port, _, _):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(get())
            await ended.wait()


async def test_a_client_that_goes_on_reading_gets_its_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        server_connection, "stopped_reader_timeout_s", 0
    )  # looks at each turn of the loop
    monkeypatch.setattr(server_connection, "slow_reader_bytes_min", 0)
    body = b"x" * 30_000_000

    async def whole(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await asgi.send_bytes(send, 200, body, [])

    async with serving(whole) as (port, _, _), connection(port) as (reader, writer):
        writer.write(get(headers=b"Connection: close\r\n"))
        assert (await reader.read()).endswith(body)
