"""Listening and serving: one socket, one ASGI app, SIGTERM drains, a deadline cuts.

uvicorn with uvloop and httptools underneath; here are the bounds and the shutdown it lacks.
"""

import asyncio
import contextlib
import errno
import json
import math
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.base.errors import ConfigurationError
from headrace.http.asgi import App
from headrace.http.tls import Certificate

Result = TypeVar("Result")

backlog = 2048
port_max = 65_535
header_bytes_max = 64 * 1024  # of one request, names and values
header_timeout_s = 30.0  # from a connection or a request's first byte to the end of its headers
pipelined_requests_max = 8  # that one connection may send ahead of its answers
stopped_reader_timeout_s = 30.0  # between two looks at a client that lets its answer pile up
slow_reader_bytes_min = 4096  # that it must take from one look to the next
keep_alive_s = 75.0  # longer than clients' pools keep idle connections, so that clients close first

bind_advice = {
    errno.EADDRINUSE: "another process listens there; stop it or choose another port",
    errno.EACCES: "this user may not use that port; choose one above 1023",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as the whole program, on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket (port 0: any free one); ConfigurationError says what to do if not."""
    if not 0 <= port <= port_max:
        raise ConfigurationError(f"There is no port {port}; choose one from 1 to {port_max}.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"Cannot listen on {host!r} port {port}: {error}.") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        advice = bind_advice.get(error.errno or 0, error.strerror or str(error))
        raise ConfigurationError(f"Cannot listen on {host} port {port}: {advice}.") from None
    return sock


def address_of(sock: socket.socket) -> tuple[str, int]:
    """The host and port that a socket really listens on."""
    host, port = sock.getsockname()[:2]
    return host, port


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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    return host in ("localhost", "::1", "ip6-localhost") or host.startswith("127.")


async def serve(
    app: App,
    sock: socket.socket,
    *,
    drain_timeout_s: float,
    stop: asyncio.Event | None = None,
    on_drain: Callable[[], None] | None = None,
    certificate: Certificate | None = None,
    handles_signals: bool = True,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`, then let running requests finish up to the timeout.

    `on_drain` is called when that begins; nothing is accepted any more. A second signal, or the
    timeout, cancels what still runs. Returns when every connection is closed. With a
    `certificate` all of it is TLS. Of several servers of one process one handles the signals."""
    config = uvicorn.Config(
        app,
        http=_BoundedProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=backlog,
        timeout_keep_alive=math.ceil(keep_alive_s),
        timeout_graceful_shutdown=math.ceil(drain_timeout_s),
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    server = _Server(config, on_drain, handles_signals=handles_signals)
    watchers = [] if stop is None else [asyncio.create_task(_drain_when(stop, server))]
    if certificate is not None:
        watchers.append(asyncio.create_task(certificate.follow()))
    try:
        await server.serve(sockets=[sock])
    finally:
        for watcher in watchers:
            watcher.cancel()


async def _drain_when(stop: asyncio.Event, server: "_Server") -> None:
    await stop.wait()
    server.drain()


class _Server(uvicorn.Server):
    """uvicorn, with our signals: the first drains, the second cuts, neither is raised again."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_drain: Callable[[], None] | None,
        *,
        handles_signals: bool,
    ) -> None:
        super().__init__(config)
        self._on_drain = on_drain
        self._handles_signals = handles_signals

    def drain(self) -> None:
        """Begin to shut down, or cut what still runs if that has begun already."""
        if self.should_exit:
            for task in tuple(self.server_state.tasks):
                task.cancel()
            return
        self.should_exit = True
        if self._on_drain is not None:
            self._on_drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take over the signals where this is the program; elsewhere `stop` is the only way."""
        is_main = threading.current_thread() is threading.main_thread()
        if not (self._handles_signals and is_main):
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.drain)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


class _BoundedProtocol(HttpToolsProtocol):
    """One connection, with bounds on what a client can make it hold.

    uvicorn tells only the newest request of a connection that the client is gone; here all of
    them learn it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._expect_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._expect_headers()

    def _expect_headers(self) -> None:
        """Close the connection unless whole headers come in time."""
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(header_timeout_s, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value))
        super().on_header(name, value)

    def _count_header_bytes(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > header_bytes_max:
            raise ValueError("the request's headers are too large")  # the parser answers 400

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of all other refusals."""
        self._stop_header_timer()
        body = malformed_body(msg)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        earlier = [cycle for cycle in self._unanswered() if not cycle.response_complete]
        if len(earlier) > pipelined_requests_max:
            self.transport.close()
            return
        super().on_headers_complete()
        self._open_cycles = [*earlier, self.cycle]

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer comes; see that it reads at all."""
        super().pause_writing()
        self._expect_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_reader_timer()
        super().resume_writing()

    def _expect_reader(self, unread_bytes: int) -> None:
        self._stop_reader_timer()
        self._reader_timer = self.loop.call_later(
            stopped_reader_timeout_s, self._check_reader, unread_bytes
        )

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _check_reader(self, unread_bytes_before: int) -> None:
        """Nothing is written while the buffer is over its mark, so what is gone was read."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes_before - unread_bytes < slow_reader_bytes_min:
            self.transport.abort()  # `close` would wait for the client to read
        else:
            self._expect_reader(unread_bytes)

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long: end it, also if the client never read its answer."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_reader_timer()
        for cycle in self._unanswered():
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def _unanswered(self) -> list[RequestResponseCycle]:
        return getattr(self, "_open_cycles", [])
