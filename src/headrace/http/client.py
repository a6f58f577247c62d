"""The one HTTP client: pooled connections to engines, streamed answers, immediate cancellation.

    async with await client.open("POST", url, headers=..., body=..., timeout_s=...) as answer:
        while chunk := await answer.read_chunk(timeout_s): ...

Leaving the block, or being cancelled, before the answer was read to its end closes its connection
at once, which is how an engine learns that nobody waits any more. Errors say what a caller may do:

    Unavailable         no connection: nothing was sent, another server may be asked
    UpstreamFailed      the connection broke, or the answer is malformed or over its bound
    DeadlineExceeded    the time for the headers or the next chunk passed

Each upstream has its own pool, so one that hangs keeps no connection from the others. Redirects,
proxies of the environment, cookies and compression are not followed or used.
"""

import asyncio
import io
import math
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

import aiohttp
from aiohttp.client_exceptions import ClientConnectorError, ConnectionTimeoutError

from headrace.base.errors import DeadlineExceeded, Unavailable, UpstreamFailed

connect_timeout_s_default = 1.0  # a live host answers in far less
connections_per_upstream_max = 4096
keep_alive_s = 15.0  # far shorter than servers keep idle connections, so that we close first
whole_body_bytes_max = 1024 * 1024  # sent in one piece
buffer_bytes = 64 * 1024  # of an answer that is not read yet; the socket waits beyond it


class WholeAnswer(NamedTuple):
    """An answer that was read to its end."""

    status: int
    body: bytes


class Answer:
    """An answer whose headers are here, and whose body comes."""

    __slots__ = ("_loop", "_response", "_timer", "_wait_deadline_s", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # one for all chunks, moved when it rings
        self._wait_deadline_s = math.inf  # of the chunk that is waited for
        self.status = response.status

    def header(self, name: str) -> str | None:
        """A header's value by its name in any case, or None."""
        return self._response.headers.get(name)

    async def read_chunk(self, timeout_s: float) -> bytes:
        """What has arrived, waiting for something if nothing has; empty at the end.

        Raises UpstreamFailed if the connection broke, DeadlineExceeded after `timeout_s`."""
        self._wait_deadline_s = deadline_s = self._loop.time() + timeout_s
        if self._timer is None or self._timer.when() > deadline_s:
            self._ring_at(deadline_s)
        try:
            return await self._response.content.readany()
        except TimeoutError:
            raise DeadlineExceeded(
                f"The engine sent nothing for {timeout_s:g} s; the request was given up.",
                timeout_s=timeout_s,
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error) from None
        finally:
            self._wait_deadline_s = math.inf

    def _ring_at(self, time_s: float) -> None:
        """See then whether the chunk that is waited for is late; a timer a chunk costs too much."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(time_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._wait_deadline_s == math.inf:
            return  # the reader is busy elsewhere; its next chunk sets the timer anew
        if self._loop.time() < self._wait_deadline_s:
            self._ring_at(self._wait_deadline_s)
        else:
            self._response.content.set_exception(TimeoutError())

    async def read_all(self, limit_bytes: int, timeout_s: float) -> bytes:
        """The whole body; `timeout_s` is for all of it."""
        content = self._response.content
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            if content.is_eof() and content.total_bytes <= limit_bytes:
                return content.read_nowait()  # it came with its headers
            async with asyncio.timeout(timeout_s):
                while piece := await content.readany():
                    pieces.append(piece)
                    size_bytes += len(piece)
                    if size_bytes > limit_bytes:
                        raise UpstreamFailed(f"The engine's answer is over {limit_bytes} bytes.")
        except TimeoutError:
            raise DeadlineExceeded(
                f"The engine's answer was not complete after {timeout_s:g} s.", timeout_s=timeout_s
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Cut the connection, unless the answer was read to its end and it is back in the pool."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._response.close()

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class HttpClient:
    """Pools of connections by upstream; belongs to one event loop. Close it at the end."""

    def __init__(self, *, connect_timeout_s: float = connect_timeout_s_default) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # each upstream has its own bound
                limit_per_host=connections_per_upstream_max,
                keepalive_timeout=keep_alive_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
            auto_decompress=False,
            read_bufsize=buffer_bytes,
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Accept"),
        )

    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and return when the answer's headers are here; the caller closes it."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._session.request(
                    method, url, data=as_payload(body), headers=headers, allow_redirects=False
                )
        except (ClientConnectorError, ConnectionTimeoutError):
            raise Unavailable("No connection to the engine; try again.") from None
        except TimeoutError:
            raise DeadlineExceeded(
                f"The engine did not answer within {timeout_s:g} s.", timeout_s=timeout_s
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error) from None
        return Answer(response)

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
        await self._session.close()


def as_payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """A body as aiohttp wants it: a large one piecewise, so that other requests go on."""
    return io.BytesIO(body) if body is not None and len(body) > whole_body_bytes_max else body


def broken(error: Exception) -> UpstreamFailed:
    """Our error for a connection that broke; the text of the driver's may hold anything."""
    return UpstreamFailed(f"The connection to the engine broke ({type(error).__name__}).")
