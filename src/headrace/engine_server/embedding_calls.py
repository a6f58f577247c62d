"""The calls for vectors that an engine process has not answered, each with who waits for it."""

import asyncio
from array import array
from itertools import count

from headrace.base.errors import HeadraceError, RateLimited
from headrace.engine_server.messages import Embed, Embedded

retry_after_s = 1.0


class EmbeddingCalls:
    """At most `calls_max` at once."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._waiters: dict[str, asyncio.Future[list[list[float]]]] = {}
        self._numbers = count()

    def open(self, token_ids: list[list[int]]) -> tuple[Embed, asyncio.Future[list[list[float]]]]:
        """A call to send, and its vectors to come; RateLimited if too many wait."""
        if len(self._waiters) >= self._calls_max:
            raise RateLimited(
                "Too many texts wait for their vectors; try again.", retry_after_s=retry_after_s
            )
        call_id = f"embed-{next(self._numbers)}"
        waiter: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        self._waiters[call_id] = waiter
        waiter.add_done_callback(lambda _: self._waiters.pop(call_id, None))
        return Embed(call_id, token_ids), waiter

    def answer(self, message: Embedded) -> None:
        """Give a call its vectors; nobody may wait for them any more."""
        waiter = self._waiters.pop(message.call_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result([array("f", packed).tolist() for packed in message.vectors])

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
