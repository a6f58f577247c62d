"""One request of a connection and its answer: the ASGI messages on one side, bytes on the other.

It is itself the app's `receive`. What watches it is called when the client goes away.
"""

import asyncio
import http
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.http.asgi import App, Header, Message, Scope, WatchedReceive

body_buffer_bytes = 64 * 1024  # of a request that nobody reads; the socket waits beyond it
no_body_statuses = frozenset({204, 304})
status_lines = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
failed_answer = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\n"
    b"content-length: 21\r\nconnection: close\r\n\r\nInternal Server Error"
)
cut_body = (
    b'{"error":{"message":"This server shuts down; try again.","type":"server_error",'
    b'"param":null,"code":"unavailable"}}'
)
cut_answer = (  # to what the app had not begun to answer, in the shape of all other refusals
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(cut_body), cut_body)
)
disconnected: Message = {"type": "http.disconnect"}

log = logging.getLogger(__name__)


class ExchangeConnection(Protocol):
    """The part of a connection that an exchange uses."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every answer."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether the client lets its answer pile up."""
        ...

    async def writable(self) -> None:
        """Return when it does no longer, or is gone."""
        ...

    def pause_reading(self) -> None:
        """Take no more from the client."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...


class Exchange(WatchedReceive):
    """One request on its way."""

    __slots__ = (
        "_body_left",
        "_buffered_bytes",
        "_changed",
        "_connection",
        "_is_answered",
        "_is_body_told",
        "_is_body_whole",
        "_is_chunked",
        "_is_cut",
        "_is_started",
        "_pieces",
        "_scope",
        "_waits_to_continue",
        "_watcher",
        "_watches_cuts",
        "is_gone",
        "keeps_alive",
    )

    def __init__(self, connection: ExchangeConnection, scope: Scope, *, keeps_alive: bool) -> None:
        self._connection = connection
        self._scope = scope
        self.keeps_alive = keeps_alive
        self.is_gone = False  # the client is
        self._waits_to_continue = any(
            name == b"expect" and value.lower() == b"100-continue"
            for name, value in scope["headers"]
        )
        self._pieces: list[bytes] = []  # of the body, not read yet
        self._buffered_bytes = 0
        self._is_body_whole = self._is_body_told = False
        self._is_started = self._is_answered = self._is_chunked = False
        self._body_left: int | None = None  # of the answer; None: it does not say
        self._changed: asyncio.Event | None = None  # while the app waits for something
        self._watcher: Callable[[], None] | None = None
        self._watches_cuts = self._is_cut = False

    # For the connection.

    def feed(self, piece: bytes) -> None:
        """A piece of the body came; one that nobody will read is dropped."""
        if self._is_answered:
            return
        self._pieces.append(piece)
        self._buffered_bytes += len(piece)
        if self._buffered_bytes > body_buffer_bytes:
            self._connection.pause_reading()
        self._tell()

    def feed_end(self) -> None:
        """The body is whole."""
        self._is_body_whole = True
        self._tell()

    def disconnect(self) -> None:
        """The client is gone."""
        self.is_gone = True
        watcher, self._watcher = self._watcher, None
        self._tell()
        if watcher is not None:
            watcher()

    def cut(self) -> None:
        """The server ends, and the app is to answer that."""
        self._is_cut = True
        watcher = self._watcher
        if watcher is not None and self._watches_cuts:
            self._watcher = None
            watcher()

    async def run(self, app: App) -> None:
        """Let the app answer; what it does wrong ends the connection and is logged."""
        try:
            await app(self._scope, self, self.send)
            if not self._is_answered and not self.is_gone:
                log.error("the app left %s unanswered", self._scope["path"])
        except Exception:
            log.exception("the app failed on %s", self._scope["path"])
        finally:
            if not self._is_answered and not self.is_gone:
                self._break_off()

    # For the app.

    @property
    def is_cut(self) -> bool:
        """Whether the server ends, and this request with it."""
        return self._is_cut and not self.is_gone

    def watch(self, watcher: Callable[[], None] | None, *, of_cuts: bool = True) -> None:
        """Have this called once when the client goes away; at once if it has."""
        self._watcher, self._watches_cuts = watcher, of_cuts
        if watcher is not None and (self.is_gone or (self._is_cut and of_cuts)):
            self._watcher = None
            watcher()

    def whole_body(self) -> bytes | None:
        """The request's body if all of it is here and nobody has read any of it."""
        if not self._is_body_whole or self._is_body_told or self.is_gone:
            return None
        self._is_body_told = True
        return self._take()

    async def __call__(self) -> Message:
        """What the client sends (ASGI's receive)."""
        while not (self.is_gone or self._is_answered):
            if self._pieces or (self._is_body_whole and not self._is_body_told):
                self._is_body_told = self._is_body_whole
                return {
                    "type": "http.request",
                    "body": self._take(),
                    "more_body": not self._is_body_whole,
                }
            if self._waits_to_continue:
                self._waits_to_continue = False
                self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._connection.resume_reading()
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()
        return disconnected

    async def send(self, message: Message) -> None:
        """A part of the answer (ASGI's send); waits while the client reads too slowly."""
        connection = self._connection
        if connection.is_congested and not self.is_gone:
            await connection.writable()
        if self.is_gone:
            return
        if message["type"] == "http.response.start":
            assert not self._is_started, "an answer starts once"
            self._is_started = True
            self._waits_to_continue = False
            connection.transport.write(self._head(message["status"], message.get("headers", ())))
            return
        assert self._is_started, "an answer starts with its status"
        assert not self._is_answered, "nothing follows the end of an answer"
        more = message.get("more_body", False)
        data = self._framed(message.get("body", b""), is_last=not more)
        if data:
            connection.transport.write(data)
        if not more:
            self._is_answered = True
            self._tell()
            connection.answered()

    def _take(self) -> bytes:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._buffered_bytes = 0
        return body

    def _tell(self) -> None:
        """Wake the app, if it waits for something."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def _head(self, status: int, headers: Iterable[Header]) -> bytes:
        """The status line and headers; ValueError if one of them would break out of its line."""
        lines = [status_lines.get(status) or b"HTTP/1.1 %d \r\n" % status]
        is_closing = False
        for name, value in (*self._connection.default_headers, *headers):
            lines.append(b"%b: %b\r\n" % (name, value))
            kind = name.lower()
            if kind == b"content-length":
                self._body_left = int(value)
            elif kind == b"connection" and b"close" in value.lower():
                self.keeps_alive = False
                is_closing = True
        has_body = status not in no_body_statuses and self._scope["method"] != "HEAD"
        if not has_body:
            self._body_left = 0
        elif self._body_left is None:
            if self._scope["http_version"] == "1.0":  # ends with its connection
                self.keeps_alive = False
            else:
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keeps_alive and not is_closing:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("an answer's headers are one line each")
        return head + b"\r\n"

    def _framed(self, body: bytes, *, is_last: bool) -> bytes:
        """A piece of the answer as it goes out."""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return data + b"0\r\n\r\n" if is_last else data
        if self._scope["method"] == "HEAD":
            return b""
        if self._body_left is not None:
            self._body_left -= len(body)
            if self._body_left < 0 or (is_last and self._body_left):
                raise ValueError("an answer is as long as its content-length says")
        return body

    def _break_off(self) -> None:
        """The app is done and the client has no whole answer."""
        transport = self._connection.transport
        if not self._is_started:
            self._is_started = True
            transport.write(cut_answer if self._is_cut else failed_answer)
        transport.close()
