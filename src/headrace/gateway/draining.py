"""Answers that are read to their end although their caller left, because they are paid to it.

    caller leaves ──> an engine that can be ended: its connection is closed, what it made is paid
                 └──> one that cannot: its answer is read on, for nobody, and all of it is paid

An engine that runs to its end works on whether or not somebody reads, and a provider bills all of
it; closing the connection would only lose the count. So the request keeps its reservation and its
lease, and the caller none of our attention: what is read goes nowhere. Bounded in number and time;
beyond either the connection is closed, and what passed until then is billed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.gateway.metrics import GatewayCounters
from headrace.http.asgi import Header
from headrace.ledger.reservation import Outcome

Result = TypeVar("Result")

answers_max = 256  # at once; each costs a connection, and of an unstreamed one its answer
drain_s_max = 600.0  # of one, from when its caller left
close_timeout_s = 10.0  # at the end of a gateway; longer ones are cut

Settle = Callable[[object], Awaitable[None]]  # is given the attempt's result, None if there is none


class Out(Protocol):
    """A stream's client."""

    def add_headers(self, headers: Iterable[Header]) -> None:
        """Send these too."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a piece; waits while the client is congested."""
        ...


class Outlet:
    """A stream's client until it is shut; from then on what is written goes nowhere."""

    def __init__(self, out: Out) -> None:
        self._out: Out | None = out
        self._write: asyncio.Timeout | None = None  # that waits for the client

    def add_headers(self, headers: Iterable[Header]) -> None:
        """As the client's."""
        if self._out is not None:
            self._out.add_headers(headers)

    async def write(self, data: bytes) -> None:
        """As the client's; returns at once when the outlet is shut meanwhile."""
        if self._out is None:
            return
        try:
            async with asyncio.timeout(None) as self._write:
                await self._out.write(data)
        except TimeoutError:
            pass
        finally:
            self._write = None

    def shut(self) -> None:
        """The client is gone, or was told that there is no more."""
        self._out = None
        if self._write is not None:
            self._write.reschedule(asyncio.get_running_loop().time())


async def outliving(
    work: Coroutine[Any, Any, Result], keep: Callable[[asyncio.Task[Result]], bool]
) -> Result:
    """The result of an attempt that may go on when its caller leaves, if `keep` takes it then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not keep(task):
            task.cancel()
            await asyncio.wait((task,))
        raise


@dataclass(slots=True)
class Rest:
    """An attempt that goes on without its caller."""

    task: asyncio.Task[Any]
    outcome: Outcome = Outcome.FAILED  # until it is known how the caller ended


class Drains:
    """The answers of a gateway that are read to their end, and their settlements."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters
        self._places = answers_max
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[Any]) -> Rest | None:
        """A place for an attempt whose caller left; None if there are too many. `finish` it."""
        if not self._places:
            self._counters.drains["refused"] += 1
            return None
        self._places -= 1
        return Rest(task)

    def finish(self, rest: Rest, settle: Settle) -> None:
        """Read an attempt to its end and settle it, apart from the request that began it."""
        task = asyncio.create_task(self._finish(rest, settle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for the last of them; those that take longer are cut and settled by what passed."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=close_timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, rest: Rest, settle: Settle) -> None:
        result: object = None
        try:
            result = await self._result(rest.task)
        finally:
            self._places += 1
            await settle(result)

    async def _result(self, task: asyncio.Task[Any]) -> object:
        """What the attempt came to; None if it broke off or was cut."""
        try:
            await asyncio.wait((task,), timeout=drain_s_max)
        finally:
            is_whole = task.done() and not task.cancelled() and task.exception() is None
            self._counters.drains["done" if is_whole else "cut"] += 1
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        return task.result() if is_whole else None
