"""The one HTTP client: pooled connections to engines, streamed answers, immediate cancellation.

    async with await client.open("POST", url, headers=..., body=..., timeout_s=...) as answer:
        while chunk := await answer.read_chunk(timeout_s): ...

Leaving the block, or being cancelled, before the answer was read to its end closes its connection
at once, which is how an engine learns that nobody waits any more. Errors say what a caller may do:

    Unavailable         no connection: nothing was sent, another server may be asked
    UpstreamFailed      the connection broke, or the answer is malformed or over its bound
    DeadlineExceeded    the time for the headers or the next chunk passed

Each upstream has its own pool, so one that hangs keeps no connection from the others. Redirects,
proxies of the environment, cookies and compression are not followed or used. What one connection
does is in `connection`; why neither is a library's: decision 0016.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from headrace.base.errors import Unavailable, UpstreamFailed
from headrace.http.connection import Connection, SizedBody
from headrace.http.patience import patience

# A lost SYN is sent again after 1 s and after 3 s (RFC 6298): a limit below that takes one dropped
# packet, or one full backlog of a busy machine, for a dead host.
connect_timeout_s_default = 3.5
connections_per_upstream_max = 16_384  # as many as requests may run
keep_alive_s = 15.0  # far shorter than most servers keep idle connections, so that we close first
default_ports = {"http": 80, "https": 443}


class WholeAnswer(NamedTuple):
    """An answer that was read to its end."""

    status: int
    body: bytes


class Upstream:
    """One server, and the connections to it."""

    def __init__(self, origin: str) -> None:
        """`origin` is a scheme, a host and perhaps a port, as in a URL."""
        parts = urlsplit(origin)
        self.host = parts.hostname or ""
        self.port = parts.port or default_ports.get(parts.scheme, 0)
        self.is_secure = parts.scheme == "https"
        self.host_line = f"Host: {parts.netloc}\r\n"
        self.idle: deque[Connection] = deque()  # the one that was used last is the last
        self.connections: set[Connection] = set()
        self.connecting_count = 0

    def take(self, now_s: float) -> Connection | None:
        """The idle connection that was used last, or None."""
        if self.idle and self.idle[-1].idle_since_s < now_s - keep_alive_s:
            self.close_older(now_s - keep_alive_s)
        return self.idle.pop() if self.idle else None

    def give_back(self, connection: Connection, now_s: float) -> None:
        """An exchange is over: keep its connection, if it may be used again."""
        if connection.is_reusable:
            connection.forget_answer()
            connection.idle_since_s = now_s
            self.idle.append(connection)
        else:
            connection.abort()

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def close_older(self, time_s: float) -> None:
        """Close what has been idle since before then."""
        while self.idle and self.idle[0].idle_since_s < time_s:
            self.idle.popleft().abort()


class Answer:
    """An answer whose headers are here, and whose body comes."""

    __slots__ = ("_connection", "_loop", "_upstream", "status")

    def __init__(self, connection: Connection, upstream: Upstream) -> None:
        self._connection: Connection | None = connection
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()
        self.status = connection.status

    def header(self, name: str) -> str | None:
        """A header's value by its name in any case, or None."""
        value = self._open.header(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    async def read_chunk(self, timeout_s: float) -> bytes:
        """What has arrived, waiting for something if nothing has; empty at the end.

        Raises UpstreamFailed if the connection broke, DeadlineExceeded after `timeout_s`."""
        connection = self._open
        data = connection.take()
        if data:
            return data
        late = f"The engine sent nothing for {timeout_s:g} s; the request was given up."
        await connection.wait_for_body(self._loop.time() + timeout_s, late)
        return connection.take()

    async def read_all(self, limit_bytes: int, timeout_s: float) -> bytes:
        """The whole body; `timeout_s` is for all of it."""
        connection = self._open
        deadline_s = self._loop.time() + timeout_s
        late = f"The engine's answer was not complete after {timeout_s:g} s."
        pieces: list[bytes] = []
        size_bytes = 0
        while await connection.wait_for_body(deadline_s, late):
            piece = connection.take()
            pieces.append(piece)
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise UpstreamFailed(f"The engine's answer is over {limit_bytes} bytes.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Cut the connection, or put it back into the pool if the answer came to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.give_back(connection, self._loop.time())

    @property
    def _open(self) -> Connection:
        assert self._connection is not None, "the answer was closed"
        return self._connection

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Asker(Protocol):
    """What those who ask one question at a time need of an `HttpClient`."""

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
    ) -> WholeAnswer:
        """Ask, and read the whole answer."""
        ...


class HttpClient:
    """Pools of connections by upstream; belongs to one event loop. Close it at the end."""

    def __init__(self, *, connect_timeout_s: float = connect_timeout_s_default) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._upstreams: dict[str, Upstream] = {}  # by origin
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        body: bytes | SizedBody | None = None,
    ) -> Answer:
        """Send a request and return when the answer's headers are here; the caller closes it.

        `method` is none whose answers have no body, such as HEAD."""
        path_start = url.find("/", url.find("://") + 3)
        origin, path = (url, "/") if path_start < 0 else (url[:path_start], url[path_start:])
        upstream = self._upstreams.get(origin)
        if upstream is None:
            upstream = self._upstreams[origin] = Upstream(origin)
        head = head_of(method, path, upstream.host_line, headers, body)
        connection = upstream.take(asyncio.get_running_loop().time())
        if connection is not None:
            try:
                return await self._ask(upstream, connection, head, body, timeout_s)
            except UpstreamFailed:
                # The server may have closed it in this moment; what changes nothing is asked again.
                if method != "GET" or connection.status:
                    raise
        connection = await self._connect(upstream, timeout_s)
        return await self._ask(upstream, connection, head, body, timeout_s)

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> WholeAnswer:
        """Send a request and read the whole answer; `timeout_s` is for each of the two."""
        answer = await self.open(method, url, headers=headers, timeout_s=timeout_s, body=body)
        async with answer:
            return WholeAnswer(answer.status, await answer.read_all(limit_bytes, timeout_s))

    async def close(self) -> None:
        """Close every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for upstream in self._upstreams.values():
            for connection in tuple(upstream.connections):
                connection.abort()
        self._upstreams.clear()
        await asyncio.sleep(0)  # the loop closes the sockets

    async def _ask(
        self,
        upstream: Upstream,
        connection: Connection,
        head: bytes,
        body: bytes | SizedBody | None,
        timeout_s: float,
    ) -> Answer:
        try:
            await connection.ask(head, body or b"", timeout_s)
        except BaseException:
            connection.abort()
            raise
        return Answer(connection, upstream)

    async def _connect(self, upstream: Upstream, timeout_s: float) -> Connection:
        if len(upstream.connections) + upstream.connecting_count >= connections_per_upstream_max:
            raise Unavailable("The engine has as many connections as it may; try again.")
        upstream.connecting_count += 1
        loop = asyncio.get_running_loop()
        limit_s = min(timeout_s, self._connect_timeout_s)
        try:
            async with patience(limit_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(upstream.lost),
                    upstream.host,
                    upstream.port,
                    ssl=self._tls_context() if upstream.is_secure else None,
                )
        except (OSError, UnicodeError) as error:  # TimeoutError is one of the former
            raise Unavailable("No connection to the engine; try again.") from error
        finally:
            upstream.connecting_count -= 1
        upstream.connections.add(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(keep_alive_s, self._close_idle)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _close_idle(self) -> None:
        """Close what has been idle for long, and forget servers that have no connection."""
        loop = asyncio.get_running_loop()
        for origin, upstream in tuple(self._upstreams.items()):
            upstream.close_older(loop.time() - keep_alive_s)
            if not upstream.connections and not upstream.connecting_count:
                del self._upstreams[origin]
        self._sweep = loop.call_later(keep_alive_s, self._close_idle) if self._upstreams else None


def head_of(
    method: str,
    path: str,
    host_line: str,
    headers: Mapping[str, str],
    body: bytes | SizedBody | None,
) -> bytes:
    """A request's first line and headers; ValueError if one of them would break out of its line."""
    lines = [f"{method} {path} HTTP/1.1\r\n", host_line]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    if body is not None or method != "GET":
        length = body.length if isinstance(body, SizedBody) else len(body or b"")
        lines.append(f"Content-Length: {length}\r\n")
    head = "".join(lines)
    if head.count("\n") != len(lines) or head.count("\r") != len(lines):
        raise ValueError("a request's headers are one line each")
    return (head + "\r\n").encode("latin-1")
