"""One connection of a client: requests come in, each is a task of the app, answers go out in turn.

    bytes ──parser──> Exchange ──task──> app(scope, exchange, exchange.send) ──> bytes

uvicorn listens, drains and ends; this is the part of it that every request pays for, with bounds
on what a client can make a connection hold. It makes no reference cycles, so that the collector
has nothing to do for a request, and tells who watches of a disconnect without a task (0016).
"""

import asyncio
import json
import logging
import math
import urllib.parse
from collections import deque
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from headrace.http.asgi import App, Scope
from headrace.http.exchange import Exchange

header_bytes_max = 64 * 1024  # of one request, names and values
header_timeout_s = 30.0  # from a connection or a request's first byte to the end of its headers
last_request_timeout_s = 0.5  # for what a client had sent when the server was told to end
pipelined_requests_max = 8  # that one connection may send ahead of its answers
stopped_reader_timeout_s = 30.0  # between two looks at a client that lets its answer pile up
slow_reader_bytes_min = 4096  # that it must take from one look to the next
keep_alive_s = 75.0  # longer than clients' pools keep idle connections, so that clients close first
asgi_version = {"version": "3.0", "spec_version": "2.3"}

log = logging.getLogger(__name__)


class DrainingState(ServerState):
    """What the connections of one server share."""

    is_draining = False  # so that a connection that was accepted before is told too


class ServerConnection(asyncio.Protocol):
    """One connection, as uvicorn makes it."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast(App, config.loaded_app)
        self._state = cast(DrainingState, server_state)
        self._app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self._parser: httptools.HttpRequestParser | None = None
        self._running: Exchange | None = None
        self._waiting: deque[Exchange] = deque()  # requests that were sent ahead of their turn
        self._newest: Exchange | None = None  # whose body comes
        self._is_in_head = False  # of a request; a header after it is a trailer, which is dropped
        self._is_upgrade = False  # the newest request asks for another protocol, in vain
        self._repeats_head = False  # what comes is its head again, without that wish
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = self._host_count = 0
        self._is_reading = True
        self._writable: asyncio.Event | None = None  # while the client reads too slowly
        self._reader_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # one, moved when it rings
        self._deadline_s = math.inf  # of the next request's headers
        self._is_last = False  # the connection ends with the next answer

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer has: its date."""
        return self._state.default_headers

    def shutdown(self) -> None:
        """End when the request that runs is answered, or one that is on its way by now, which comes
        within `last_request_timeout_s` (uvicorn calls it)."""
        self._is_last = True
        if self._running is None:
            self._expect_headers(last_request_timeout_s)
        else:
            self._running.keeps_alive = False

    def cut(self) -> None:
        """Have what still runs answer that the server ends; where nothing does, end at once."""
        if self._running is None:
            self.transport.close()  # behind what is left of an answer
        for exchange in (self._running, *self._waiting):
            if exchange is not None:
                exchange.cut()

    def answered(self) -> None:
        """The running request has its answer: the next one's turn."""
        exchange, self._running = self._running, None
        self._state.total_requests += 1
        if exchange is not None and not exchange.keeps_alive:
            self.transport.close()
        elif not self.transport.is_closing():
            self.resume_reading()
            if self._waiting:
                self._start(self._waiting.popleft())
            else:
                self._expect_headers(keep_alive_s)

    def pause_reading(self) -> None:
        """The app has more of the client's than it reads."""
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The app wants more."""
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    async def writable(self) -> None:
        """Return when the client has read enough of what was written, or is gone."""
        while self._writable is not None:
            await self._writable.wait()

    @property
    def is_congested(self) -> bool:
        """Whether the client lets its answer pile up."""
        return self._writable is not None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self.transport = cast(asyncio.Transport, transport)
        self._state.connections.add(cast(Any, self))  # uvicorn names its own classes
        self._parser = self._new_parser()
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        is_secure = transport.get_extra_info("sslcontext") is not None
        self._client = tuple(peer[:2]) if isinstance(peer, tuple) else None
        self._server = tuple(own[:2]) if isinstance(own, tuple) else None
        self._scheme = "https" if is_secure else "http"
        if self._state.is_draining:
            self.shutdown()
        else:
            self._expect_headers(header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._parser is None or self.transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(str(error.__context__ or error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we have closed."""
        self._state.connections.discard(cast(Any, self))
        self._parser = None
        self._deadline_s = math.inf
        for timer in (self._timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._reader_timer = None
        running, self._running = self._running, None
        waiting = tuple(self._waiting)
        self._waiting.clear()
        self._newest = None
        self.resume_writing()
        for exchange in (running, *waiting):
            if exchange is not None:
                exchange.disconnect()

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer comes; see that it reads at all."""
        if self._writable is None:
            self._writable = asyncio.Event()
        self._expect_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request's first byte."""
        if self._repeats_head:
            return
        self._url = b""
        self._headers = []
        self._header_bytes = self._host_count = 0
        self._is_in_head = True
        self._expect_headers(last_request_timeout_s if self._is_last else header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """A piece of the first line."""
        if self._repeats_head:
            return
        self._url += url
        self._count_header_bytes(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; a trailer, which is no part of the request's head, is only counted."""
        self._count_header_bytes(len(name) + len(value))
        if self._is_in_head:
            lower = name.lower()
            self._host_count += lower == b"host"
            self._headers.append((lower, value))

    def on_headers_complete(self) -> None:
        """A request whose headers are here."""
        assert self._parser is not None
        self._deadline_s = math.inf
        self._is_in_head = False
        if self._repeats_head:
            self._repeats_head = False
            return
        self._is_upgrade = self._parser.should_upgrade()
        if len(self._waiting) >= pipelined_requests_max:
            self.transport.close()
            return
        parser, version = self._parser, self._parser.get_http_version()
        if version == "1.1" and self._host_count != 1:
            raise ValueError("a request has one Host header")  # RFC 9112, 3.2
        exchange = Exchange(
            self,
            self._scope(parser.get_method().decode("ascii"), version),
            keeps_alive=version != "1.0" and parser.should_keep_alive() and not self._is_last,
        )
        self._newest = exchange
        if self._running is None:
            self._start(exchange)
        else:
            self.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """A piece of the newest request."""
        if self._newest is not None:
            self._newest.feed(body)

    def on_message_complete(self) -> None:
        """The newest request is whole, unless the parser took its body for another protocol."""
        if self._is_upgrade:
            return
        if self._newest is not None:
            self._newest.feed_end()
            self._newest = None

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Data behind a request that closes the connection is no reason not to answer it.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _go_on_after_upgrade(self, rest: bytes) -> None:
        """Read on in HTTP/1.1, as no other protocol is spoken here (RFC 9110, 7.8).

        The parser stopped behind the head, whatever body follows; another one is told of the
        body alone. What follows a CONNECT is no HTTP: the connection ends with its answer."""
        assert self._parser is not None
        self._is_upgrade = False
        if self._newest is None or self._parser.get_method() == b"CONNECT":
            self._parser = None
            if self._newest is not None:
                self._newest.keeps_alive = False
                self.on_message_complete()
            return
        framing = [
            b"%b: %b\r\n" % header
            for header in self._headers
            if header[0] in (b"content-length", b"transfer-encoding")
        ]
        self._parser = self._new_parser()
        self._repeats_head = True
        self.data_received(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n" + rest)

    def _count_header_bytes(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > header_bytes_max:
            raise ValueError("the request's headers are too large")  # the parser's error: 400

    def _scope(self, method: str, version: str) -> Scope:
        url = self._url
        if url.startswith(b"/") and b"#" not in url:
            raw_path, _, query = url.partition(b"?")
        else:
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path or b"", parsed.query or b""
            if not raw_path:
                raise ValueError("the request has no path")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": asgi_version,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": method,
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
        }

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        task = self.loop.create_task(exchange.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _refuse(self, problem: str) -> None:
        """Answer what is no HTTP in the shape of all other refusals, and end."""
        self._parser = None
        body = malformed_body(problem)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def _expect_headers(self, timeout_s: float) -> None:
        """Close the connection unless whole headers come in time."""
        self._deadline_s = deadline_s = self.loop.time() + timeout_s
        if self._timer is None or self._timer.when() > deadline_s:
            self._ring_at(deadline_s)

    def _ring_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(time_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._deadline_s == math.inf:
            return  # a request runs; the next wait sets the timer anew
        if self.loop.time() < self._deadline_s:
            self._ring_at(self._deadline_s)
        else:
            self.transport.abort()  # `close` would wait for a client that never read its answer

    def _expect_reader(self, unread_bytes: int) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        self._reader_timer = self.loop.call_later(
            stopped_reader_timeout_s, self._check_reader, unread_bytes
        )

    def _check_reader(self, unread_bytes_before: int) -> None:
        """Nothing is written while the buffer is over its mark, so what is gone was read."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes_before - unread_bytes < slow_reader_bytes_min:
            self.transport.abort()  # `close` would wait for the client to read
        else:
            self._expect_reader(unread_bytes)


def malformed_body(problem: str) -> bytes:
    """The error body, in OpenAI's shape, for bytes that are no HTTP request."""
    detail = problem.rstrip(".")
    error = {
        "message": f"The request is not valid HTTP ({detail}); send a well-formed one.",
        "type": "invalid_request_error",
        "param": None,
        "code": "malformed_request",
    }
    return json.dumps({"error": error}).encode()
