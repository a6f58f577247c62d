"""One connection to a server: a request goes out, its answer comes in, and then perhaps another.

    ask ──> headers are here ──read_chunk──> ... ──> whole ──> `is_reusable`, or closed

Whoever waits is woken by the deadline of the newest wait. There is one timer a connection, moved
when it rings: one for each wait would cost more than the chunk that is waited for.
"""

import asyncio
import math
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, cast

import httptools

from headrace.base.errors import DeadlineExceeded, HeadraceError, UpstreamFailed

buffer_bytes = 64 * 1024  # of an answer that is not read yet; the socket waits beyond it
header_bytes_max = 64 * 1024  # of an answer
joined_body_bytes_max = 64 * 1024  # copying so much is cheaper than a second piece to write
final_status_min = 200  # below are words on the way, such as 100 Continue
# A machine that lost its power or its cable says nothing, and an answer may be awaited for minutes.
# So the kernel asks the other one's after 4 s of silence, and gives the connection up 8 s after it
# last heard of it. A server that computes for long is not concerned: its kernel answers.
probe_after_s = 4
probe_interval_s = 2
silent_machine_s = 8


class SizedBody(NamedTuple):
    """A request's body of known length that comes piece by piece."""

    content_type: str
    length: int
    pieces: AsyncIterator[bytes]


class Connection(asyncio.Protocol):
    """A connection that one exchange at a time uses."""

    def __init__(self, on_lost: Callable[["Connection"], None]) -> None:
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None  # of the answer that comes
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._pieces: list[bytes] = []  # of the body, not read yet
        self._buffered_bytes = 0
        self._is_paused = False
        self._ends_with_connection = False  # the answer does not say how long it is
        self._keeps_alive = False
        self._error: HeadraceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wait_deadline_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()  # the server has taken most of what was written
        self._writable.set()
        self._is_cut = False  # the request was not sent to its end
        self.status = 0  # of the answer; 0 until its headers are here
        self.is_whole = False  # the answer has come to its end
        self.is_lost = False
        self.idle_since_s = 0.0  # when it was put aside, by the loop's clock

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return self.is_whole and self._keeps_alive and not (self.is_lost or self._is_cut)

    async def ask(self, head: bytes, body: bytes | SizedBody, timeout_s: float) -> None:
        """Send a request and return when the answer's headers are here.

        UpstreamFailed if the connection broke, or what came is no HTTP; DeadlineExceeded."""
        assert self._transport is not None, "a connection is made before it is used"
        self._parser = httptools.HttpResponseParser(self)
        self._headers = []
        self._header_bytes = self.status = 0
        self._error = None
        self.is_whole = self._ends_with_connection = False
        if isinstance(body, SizedBody):
            self._transport.write(head)
            await self._send(body.pieces, timeout_s)
        elif len(body) <= joined_body_bytes_max:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        deadline_s = self._loop.time() + timeout_s
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait(deadline_s, f"The engine did not answer within {timeout_s:g} s.")

    async def _send(self, pieces: AsyncIterator[bytes], timeout_s: float) -> None:
        """Send a body as fast as the server takes it; stops where it answers before the end."""
        self._is_cut = True
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in pieces:
                    if self.status or self._error is not None or self._transport is None:
                        return
                    self._transport.write(piece)
                    await self._writable.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"The engine did not take the request within {timeout_s:g} s."
            ) from None
        self._is_cut = False

    def header(self, name: bytes) -> bytes | None:
        """The first header of this lower-case name, or None."""
        for key, value in self._headers:
            if key == name:
                return value
        return None

    def take(self) -> bytes:
        """The body as far as it has come and was not taken yet."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def wait_for_body(self, deadline_s: float, late: str) -> bool:
        """Return when there is something to take; False at the answer's end.

        UpstreamFailed if the connection broke, DeadlineExceeded with the words of `late`."""
        while not self._pieces:
            if self.is_whole:
                return False
            if self._error is not None:
                raise self._error
            await self._wait(deadline_s, late)
        return True

    def forget_answer(self) -> None:
        """The exchange is over: drop what nobody read of it."""
        self.take()
        self._parser = None

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if not self.is_whole and self._error is None:
            self._error = UpstreamFailed("The connection to the engine was closed.")
        if self._transport is not None:
            self._transport.abort()
        if not self.is_lost:
            self.connection_lost(None)

    async def _wait(self, deadline_s: float, late: str) -> None:
        self._wait_deadline_s = deadline_s
        if self._timer is None or self._timer.when() > deadline_s:
            self._ring_at(deadline_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except TimeoutError:
            raise DeadlineExceeded(late) from None
        finally:
            self._waiter = None
            self._wait_deadline_s = math.inf

    def _ring_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(time_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._wait_deadline_s == math.inf:
            return  # nobody waits now; the next wait sets the timer anew
        if self._loop.time() < self._wait_deadline_s:
            self._ring_at(self._wait_deadline_s)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, problem: str) -> None:
        """The answer is no good, and neither is what may come behind it."""
        if self._error is None and not self.is_whole:
            self._error = UpstreamFailed(problem)
        self.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        notice_silent_machine(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._parser is None or self.is_whole:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("The engine's answer is no HTTP, or its headers are too large.")
            return
        if self._buffered_bytes > buffer_bytes and not self._is_paused and not self.is_lost:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        """The server is slower than what is written."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self.is_lost:
            return
        self.is_lost = True
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_whole and self._error is None:
            if self.status and self._ends_with_connection and exc is None:
                self.is_whole = True
            else:
                self._error = UpstreamFailed("The connection to the engine broke.")
        self._on_lost(self)
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self.is_whole:
            raise ValueError("a second answer came behind the one that was asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > header_bytes_max:
            raise ValueError("the answer's headers are too large")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The answer's headers are here."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < final_status_min:
            self._headers.clear()
            return
        self.status = status
        self._keeps_alive = self._parser.should_keep_alive()
        names = [name for name, _ in self._headers]
        self._ends_with_connection = (
            b"content-length" not in names and b"transfer-encoding" not in names
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        self._pieces.append(body)
        self._buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was a word on the way."""
        self.is_whole = self.status != 0


def notice_silent_machine(sock: socket.socket) -> None:
    """Have the kernel break a connection whose other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_interval_s)
    sock.setsockopt(
        socket.IPPROTO_TCP,
        socket.TCP_KEEPCNT,
        (silent_machine_s - probe_after_s) // probe_interval_s,
    )
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_after_s)
        # What was sent and not acknowledged is sent again for 15 minutes otherwise.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_machine_s * 1000)
