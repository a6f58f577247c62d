"""How long a caller is ready to wait for a whole answer: the header `x-request-timeout`."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest
from headrace.gateway.endings import CallerDeadline, caller_deadline
from headrace.http.asgi import DisconnectScope, Receive, Scope, header

header_name = b"x-request-timeout"
deadline_s_max = 86_400.0


def deadline_of(scope: Scope) -> float | None:
    """The seconds from now, or None if the caller sets no limit; InvalidRequest for nonsense."""
    text = header(scope, header_name)
    if text is None:
        return None
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = math.nan
    if not 0 < deadline_s <= deadline_s_max:
        raise InvalidRequest(
            f"X-Request-Timeout is a number of seconds above 0 and up to {deadline_s_max:.0f}.",
            param="X-Request-Timeout",
        )
    return deadline_s


class CallerTime:
    """How long one caller waits from now on, whoever is asked."""

    def __init__(self, deadline_s: float | None, clock: Clock) -> None:
        """None: it sets no limit."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._start_s = clock.monotonic_s()

    def left(self) -> CallerDeadline | float | None:
        """What is left of it, or that it is over; None: there is no limit."""
        left_s = self._left_s
        if left_s is None or self._deadline_s is None or left_s > 0.0:
            return left_s
        return caller_deadline(self._deadline_s)

    def bounded(self, receive: Receive) -> AbstractAsyncContextManager[object]:
        """The block ends with ClientClosed when the client leaves, CallerDeadline at its limit,
        ServerCloses when this gateway ends."""
        if self._deadline_s is None:  # nearly always
            return DisconnectScope(receive)
        return self._until_deadline(receive, self._deadline_s)

    @property
    def _left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return self._deadline_s - (self._clock.monotonic_s() - self._start_s)

    @asynccontextmanager
    async def _until_deadline(self, receive: Receive, deadline_s: float) -> AsyncIterator[None]:
        try:
            async with DisconnectScope(receive), asyncio.timeout(self._left_s):
                yield
        except TimeoutError:
            raise caller_deadline(deadline_s) from None
