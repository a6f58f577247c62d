"""Listening and serving: one socket, one ASGI app, SIGTERM drains, a deadline cuts.

    SIGTERM ── nothing is accepted; what runs goes on ──> `drain_timeout_s`
            ── what still runs is told to end, and answers so (`ServerCloses`) ──> `cut_timeout_s`
            ── tasks are cancelled, connections closed

uvicorn with uvloop underneath; here is the shutdown that it lacks. What it has for one connection
is replaced by `server_connection`.
"""

import asyncio
import contextlib
import errno
import math
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from ipaddress import ip_address
from typing import Any, TypeVar, cast

import uvicorn
import uvloop

from headrace.base.errors import ConfigurationError
from headrace.http.asgi import App
from headrace.http.server_connection import DrainingState, ServerConnection, keep_alive_s
from headrace.http.tls import Certificate

Result = TypeVar("Result")

backlog = 2048
cut_timeout_s = 3.0  # for what was cut to ask engines, settle, and answer
cancel_timeout_s = 1.0  # for what did not
port_max = 65_535

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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; of names only those that nobody else can give."""
    if host in ("localhost", "ip6-localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def serve(
    app: App,
    sock: socket.socket,
    *,
    drain_timeout_s: float,
    stop: asyncio.Event | None = None,
    on_drain: Callable[[], None] | None = None,
    on_cut: Callable[[], None] | None = None,
    certificate: Certificate | None = None,
    handles_signals: bool = True,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`, then let running requests finish up to the timeout.

    `on_drain` is called when that begins; nothing is accepted any more. The timeout, or a second
    signal, cuts what still runs, before which `on_cut` is called; a third one cancels it. Returns
    when every connection is closed. With a `certificate` all of it is TLS; renewals are taken where
    the caller runs `certificate.follow`. Of several servers of one process one handles the
    signals."""
    config = uvicorn.Config(
        app,
        http=ServerConnection,
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
        timeout_graceful_shutdown=math.ceil(drain_timeout_s + cut_timeout_s),
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    server = _Server(config, drain_timeout_s, on_drain, on_cut, handles_signals=handles_signals)
    watcher = None if stop is None else asyncio.create_task(_drain_when(stop, server))
    try:
        await server.serve(sockets=[sock])
    finally:
        if watcher is not None:
            watcher.cancel()
        await server.end()


async def _drain_when(stop: asyncio.Event, server: "_Server") -> None:
    await stop.wait()
    server.drain()


class _Server(uvicorn.Server):
    """uvicorn, with our signals: the first drains, the second cuts, none is raised again."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain_timeout_s: float,
        on_drain: Callable[[], None] | None,
        on_cut: Callable[[], None] | None,
        *,
        handles_signals: bool,
    ) -> None:
        super().__init__(config)
        self.server_state = self._state = DrainingState()
        self._drain_timeout_s = drain_timeout_s
        self._on_drain = on_drain
        self._on_cut = on_cut
        self._handles_signals = handles_signals
        self._timer: asyncio.TimerHandle | None = None  # that cuts
        self._is_cut = False

    def drain(self) -> None:
        """Begin to shut down; if that has begun already, cut what still runs, then cancel it."""
        if not self.should_exit:
            self.should_exit = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._drain_timeout_s, self._cut)
            if self._on_drain is not None:
                self._on_drain()
        elif not self._is_cut:
            self._cut()
        else:
            for task in tuple(self.server_state.tasks):
                task.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more and return when all is answered (uvicorn calls it).

        It tells the connections that there are; one may be accepted by now and not be there yet."""
        self._state.is_draining = True
        await super().shutdown(sockets)

    async def end(self) -> None:
        """Return once what was cancelled has ended, if that takes no longer than it may."""
        if self._timer is not None:
            self._timer.cancel()
        if self.server_state.tasks:
            await asyncio.wait(tuple(self.server_state.tasks), timeout=cancel_timeout_s)

    def _cut(self) -> None:
        self._is_cut = True
        if self._on_cut is not None:
            self._on_cut()
        for connection in tuple(self.server_state.connections):
            cast(ServerConnection, connection).cut()

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
