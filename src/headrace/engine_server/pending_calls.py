"""Calls that an engine process has not answered, each with who waits for it."""

import asyncio
from itertools import count
from typing import Generic, TypeVar

from headrace.base.errors import HeadraceError, RateLimited

retry_after_s = 1.0

Answer = TypeVar("Answer")


class PendingCalls(Generic[Answer]):
    """At most `calls_max` at once, of one kind: `name` begins their ids."""

    def __init__(self, name: str, calls_max: int) -> None:
        self._name = name
        self._calls_max = calls_max
        self._waiters: dict[str, asyncio.Future[Answer]] = {}
        self._numbers = count()

    def open(self) -> "tuple[str, asyncio.Future[Answer]]":
        """An id for a call to send, and its answer to come; RateLimited if too many wait."""
        if len(self._waiters) >= self._calls_max:
            raise RateLimited(
                "Too many calls wait for the engine; try again.", retry_after_s=retry_after_s
            )
        call_id = f"{self._name}-{next(self._numbers)}"
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiters[call_id] = waiter
        waiter.add_done_callback(lambda _: self._waiters.pop(call_id, None))
        return call_id, waiter

    def answer(self, call_id: str, answer: Answer) -> None:
        """End a call well; nobody may wait for it any more."""
        waiter = self._waiters.pop(call_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

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
