"""Where one request ends and the next begins, and what is part of its head: nobody may disagree.

What stands before this server reads the same bytes. A request that both could read in two ways is
refused; what both read alike must leave the connection in step.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.http import asgi, server

upgrade = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n"
)
websocket = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
wait_s = 30.0
next_request = b"GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def seen() -> AsyncIterator[tuple[int, list[dict[str, object]]]]:
    """A server that notes what it is asked."""
    asked: list[dict[str, object]] = []

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        body = await asgi.read_body(receive, 1 << 20)
        names = [name.decode() for name, _ in scope["headers"]]
        asked.append(
            {"method": scope["method"], "path": scope["path"], "body": body, "names": names}
        )
        await asgi.send_json(send, 200, b"{}")

    sock, stop = server.bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(server.serve(app, sock, drain_timeout_s=5, stop=stop))
    try:
        yield server.address_of(sock)[1], asked
    finally:
        stop.set()
        await task


async def answer(port: int, *pieces: bytes) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(wait_s):
        said = await reader.read()
    writer.close()
    return said


def head(*lines: bytes, method: bytes = b"POST") -> bytes:
    return b"\r\n".join((method + b" /first HTTP/1.1", b"Host: x", *lines, b"", b""))


@pytest.mark.parametrize("wish", [upgrade, websocket], ids=["h2c", "websocket"])
@pytest.mark.parametrize(
    ("framing", "body", "read"),
    [
        (b"", b"", b""),
        (b"Content-Length: 5\r\n", b"hello", b"hello"),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
    ],
    ids=["no body", "sized", "chunked"],
)
@pytest.mark.parametrize("cut", [0, 1, 3])
async def test_who_asks_for_another_protocol_is_answered_in_this_one(
    wish: bytes, framing: bytes, body: bytes, read: bytes, cut: int
) -> None:
    """As Java's client does with the first request of each connection."""
    sent = b"POST /first HTTP/1.1\r\nHost: x\r\n" + wish + framing + b"\r\n" + body + next_request
    at = len(sent) - len(next_request) - cut
    async with seen() as (port, asked):
        said = await answer(port, sent[:at], sent[at:])
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert [(each["path"], each["body"]) for each in asked] == [("/first", read), ("/next", b"")]


async def test_nothing_follows_a_connect() -> None:
    async with seen() as (port, asked):
        said = await answer(port, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + next_request)
    assert not any(each["path"] == "/next" for each in asked)
    assert b"/next" not in said


async def test_a_trailer_is_no_header() -> None:
    sent = head(b"Transfer-Encoding: chunked", b"Trailer: Authorization")
    sent += b"2\r\nhi\r\n0\r\nAuthorization: Bearer x\r\nX-Forwarded-For: y\r\nHost: z\r\n\r\n"
    async with seen() as (port, asked):
        said = await answer(port, sent, next_request)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert asked[0]["body"] == b"hi"
    assert asked[0]["names"] == ["host", "transfer-encoding", "trailer"]
    assert asked[1]["names"] == ["host", "connection"]


async def test_trailers_are_bounded_as_headers_are() -> None:
    sent = head(b"Transfer-Encoding: chunked") + b"2\r\nhi\r\n0\r\n" + b"A: bcd\r\n" * 20_000
    async with seen() as (port, asked):
        said = await answer(port, sent)
    assert said.startswith(b"HTTP/1.1 400") or said == b""
    assert all(each["names"] == ["host", "transfer-encoding"] for each in asked)


@pytest.mark.parametrize(
    "lines",
    [
        (b"Host: y",),
        (b"HOST: x",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding: chunked, chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding: \x0bchunked",),
        (b'Transfer-Encoding: "chunked"',),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        (b"Content-Length: +5",),
        (b"Content-Length: 0x5",),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: 5 5",),
        (b"Content-Length: 5", b"Content-Length: 5"),
        (b"Content-Length : 5",),
        (b"A: b\r\n folded",),
        (b"A: b\nB: c",),
        (b"A: b\rB: c",),
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(lines: tuple[bytes, ...]) -> None:
    async with seen() as (port, asked):
        said = await answer(port, head(*lines) + b"hello" + next_request)
    assert said.startswith(b"HTTP/1.1 400 Bad Request")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "malformed_request"
    assert asked == []


async def test_a_request_says_which_host_it_is_for() -> None:
    async with seen() as (port, asked):
        said = await answer(port, b"GET /first HTTP/1.1\r\nA: b\r\n\r\n")
        assert b"one Host header" in said
        assert asked == []
        older = await answer(port, b"GET /first HTTP/1.0\r\n\r\n")  # as probes of balancers ask
    assert older.startswith(b"HTTP/1.1 200 OK")
