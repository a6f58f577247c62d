"""Raw ASGI in a few helpers: a body with a bound, one-piece answers, event streams, disconnects.

Routes on the hot path use these and no framework: a stream's chunk is one `send`, one write.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from types import TracebackType
from typing import Any

from headrace.base.errors import (
    ClientClosed,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    Unavailable,
)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

# A body over the limit is still read up to here before the refusal is sent: closing a connection
# on a client that is writing resets it, and the client would never see why.
discarded_bytes_max = 64 * 1024 * 1024
body_timeout_s = 60.0

json_header: Header = (b"content-type", b"application/json")
stream_headers: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must pass each chunk on at once
)


def header(scope: Scope, name: bytes) -> str | None:
    """The value of the first header of this lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


class ServerCloses(Unavailable):
    """This server ends before the answer was complete; another one may give it."""

    def __init__(self) -> None:
        super().__init__("This server shuts down; try again.", retry_after_s=1.0)


class WatchedReceive(ABC):
    """A `receive` that knows more than ASGI asks for, so that most requests need no more tasks."""

    __slots__ = ()

    @abstractmethod
    async def __call__(self) -> Message:
        """What the client sends."""

    @property
    @abstractmethod
    def is_cut(self) -> bool:
        """Whether the server ends, and this request with it."""

    @abstractmethod
    def watch(self, watcher: Callable[[], None] | None, *, of_cuts: bool = True) -> None:
        """Have this called once when the client goes away, at once if it has; None: no longer.

        `of_cuts`: the same when the server cuts the request."""

    @abstractmethod
    def whole_body(self) -> bytes | None:
        """The request's body if all of it is here and nobody has read any of it."""


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """The whole body; PayloadTooLarge over the limit, ClientClosed if the client goes away.

    InvalidRequest if it does not arrive in `body_timeout_s`."""
    if isinstance(receive, WatchedReceive):
        body = receive.whole_body()
        if body is not None:
            return checked_size(body, limit_bytes)
    try:
        async with asyncio.timeout(body_timeout_s):
            pieces, size_bytes = await _read_pieces(receive, limit_bytes)
    except TimeoutError:
        raise InvalidRequest(
            f"The body did not arrive within {body_timeout_s:.0f} s; send it again."
        ) from None
    if size_bytes > limit_bytes:
        raise too_large(limit_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def checked_size(body: bytes, limit_bytes: int) -> bytes:
    """The body, if it is within the limit."""
    if len(body) > limit_bytes:
        raise too_large(limit_bytes)
    return body


def too_large(limit_bytes: int) -> PayloadTooLarge:
    """The refusal of a body over the limit."""
    return PayloadTooLarge(
        f"The body is larger than {limit_bytes} bytes; send less.", limit_bytes=limit_bytes
    )


async def _read_pieces(receive: Receive, limit_bytes: int) -> tuple[list[bytes], int]:
    """The body's pieces as long as they are under the limit, and its size as far as it was read."""
    pieces: list[bytes] = []
    size_bytes = 0
    more = True
    while more and size_bytes <= discarded_bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientClosed("The client went away while it sent its request.")
        piece = message.get("body", b"")
        more = message.get("more_body", False)
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            pieces.clear()
        else:
            pieces.append(piece)
    return pieces, size_bytes


async def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """Answer in one piece."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
    """Answer with JSON that is encoded already."""
    await send_bytes(send, status, body, (json_header, *headers))


def error_headers(error: HeadraceError) -> list[Header]:
    """The headers that go with an error's body: when to retry, whether the connection ends."""
    headers: list[Header] = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if isinstance(error, PayloadTooLarge):
        headers.append((b"connection", b"close"))
    return headers


class EventStream:
    """An answer of server-sent events; every `write` is flushed at once."""

    def __init__(self, send: Send, headers: Iterable[Header] = ()) -> None:
        self._send = send
        self._headers = [*stream_headers, *headers]
        self._late = b""  # headers that came after theirs were sent
        self.started = False
        self.has_events = False  # comments are none

    def add_headers(self, headers: Iterable[Header]) -> None:
        """Send these too; in comments before the next event if the headers are sent already."""
        if self.started:
            self._late += b"".join(b": %b: %b\n\n" % header for header in headers)
        else:
            self._headers += headers

    async def write(self, data: bytes) -> None:
        """Send whole events; the first call sends the status and headers before them.

        Waits while the client's connection is congested."""
        self.has_events = True
        if self._late:
            data, self._late = self._late + data, b""
        await self.comment(data)

    async def comment(self, data: bytes) -> None:
        """Send what clients skip, as `write` does events."""
        if not self.started:
            self.started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        """Send the last events and end the answer."""
        if data or not self.started:
            await self.write(data)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class DisconnectScope:
    """`async with DisconnectScope(receive)`: the block is cancelled when the client goes away.

    The cancellation leaves the block as ClientClosed, or as ServerCloses when the server ends and
    cuts what still runs. Enter it once the body is read, and leave it before the answer's last
    piece is sent: after that a server reports every request as gone."""

    def __init__(self, receive: Receive, *, of_cuts: bool = True) -> None:
        """Not `of_cuts`: what the block waits for is told itself that the server ends."""
        self._receive = receive
        self._of_cuts = of_cuts
        self._gone = False
        self._is_cut = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "DisconnectScope":
        task = asyncio.current_task()
        assert task is not None, "a disconnect scope needs a task to cancel"
        self._task = task
        self._cancellations = task.cancelling()
        if isinstance(self._receive, WatchedReceive):
            self._receive.watch(self._leave, of_cuts=self._of_cuts)
        else:
            self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(self._receive, WatchedReceive):
            self._receive.watch(None)
        elif self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # a cancelled task refers to its frame, which refers to this
        if not self._gone:
            return
        others = self._task.uncancel() > self._cancellations
        if kind is asyncio.CancelledError and not others:
            if self._is_cut:
                raise ServerCloses from None
            raise ClientClosed("The client went away before its answer was complete.") from None

    async def _watch(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._is_cut = message.get("is_cut", False)
        self._leave()

    def _leave(self) -> None:
        self._gone = True
        if isinstance(self._receive, WatchedReceive):
            self._is_cut = self._receive.is_cut
        self._task.cancel()
