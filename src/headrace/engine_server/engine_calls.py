"""Calls of an operator that an engine process has not answered, each with who waits for it."""

import asyncio
from itertools import count

from headrace.base.errors import HeadraceError, RateLimited
from headrace.engine_server.messages import Done, LoadedAdapter

calls_max = 64
retry_after_s = 1.0


class EngineCalls:
    """At most `calls_max` at once; each gives the adapters that are loaded after it."""

    def __init__(self) -> None:
        self._waiters: dict[str, asyncio.Future[list[LoadedAdapter]]] = {}
        self._numbers = count()

    def open(self) -> tuple[str, "asyncio.Future[list[LoadedAdapter]]"]:
        """An id for a call to send, and its answer to come; RateLimited if too many wait."""
        if len(self._waiters) >= calls_max:
            raise RateLimited(
                "Too many calls wait for the engine; try again.", retry_after_s=retry_after_s
            )
        call_id = f"call-{next(self._numbers)}"
        waiter: asyncio.Future[list[LoadedAdapter]] = asyncio.get_running_loop().create_future()
        self._waiters[call_id] = waiter
        waiter.add_done_callback(lambda _: self._waiters.pop(call_id, None))
        return call_id, waiter

    def answer(self, message: Done) -> None:
        """End a call well; nobody may wait for it any more."""
        waiter = self._waiters.pop(message.call_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(message.adapters)

    def fail(self, call_id: str, error: HeadraceError) -> bool:
        """End a call with an error; False if there is none of that id."""
        waiter = self._waiters.pop(call_id, None)
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_exception(error)
        return True

    def fail_all(self, error: HeadraceError) -> None:
        """End every call: the engine is gone."""
        for call_id in tuple(self._waiters):
            self.fail(call_id, error)
