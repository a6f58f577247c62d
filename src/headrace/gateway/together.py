"""Questions to a store that wait for each other are asked as one: a transaction costs far more than
the rows in it. One is under way at a time; what comes meanwhile goes with the next."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question")
Reply = TypeVar("Reply")


class Together(Generic[Question, Reply]):
    """One kind of questions; one event loop uses it, whose callers bound how many wait."""

    def __init__(self, ask: Callable[[Sequence[Question]], Sequence[Reply]]) -> None:
        """`ask` blocks, and replies to each question in their order."""
        self._ask = ask
        self._waiting: list[tuple[Question, asyncio.Future[Reply]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, question: Question, timeout_s: float) -> Reply:
        """The reply to one; raises what asking raised, TimeoutError after `timeout_s`."""
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waits = (question, replied)
        self._waiting.append(waits)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        try:
            async with asyncio.timeout(timeout_s):
                return await replied
        finally:
            if waits in self._waiting:
                self._waiting.remove(waits)

    async def close(self) -> None:
        """Return when nothing is asked any more: a thread cannot be cancelled."""
        if self._asking is not None:
            await asyncio.wait([self._asking])

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._ask_batch(batch)
        finally:
            self._asking = None

    async def _ask_batch(self, batch: Sequence[tuple[Question, asyncio.Future[Reply]]]) -> None:
        try:
            replies = await asyncio.to_thread(self._ask, [question for question, _ in batch])
            replied_to = list(zip(batch, replies, strict=True))
        except Exception as error:  # noqa: BLE001 -- raised at those that wait, whatever it is
            for _, replied in batch:
                if not replied.done():
                    replied.set_exception(error)
            return
        for (_, replied), reply in replied_to:
            if not replied.done():
                replied.set_result(reply)
