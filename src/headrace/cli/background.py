"""A loop in a thread of its own, and a model's API in it, while a person types in the main one."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.service import ModelService
from headrace.http import server

Result = TypeVar("Result")


class Runner(Protocol):
    """What runs coroutines for code that is none: `asyncio.Runner`, or a `BackgroundLoop`."""

    def run(self, coro: Coroutine[Any, Any, Result], /) -> Result:
        """Run to the end; KeyboardInterrupt cancels it, and is raised once it has ended."""
        ...


class BackgroundLoop:
    """Runs coroutines as `asyncio.Runner` does, and goes on with the API between them."""

    def __init__(self, service: ModelService, sock: socket.socket, api_key: str | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop = asyncio.Event()
        app = EngineServerApp(service, api_key)
        self._serving: Future[None] = asyncio.run_coroutine_threadsafe(
            server.serve(app, sock, drain_timeout_s=0, stop=self._stop, handles_signals=False),
            self._loop,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the API, then the loop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._serving.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coro: Coroutine[Any, Any, Result], /) -> Result:
        """Run to the end; KeyboardInterrupt cancels it, and is raised once it has ended."""
        task: asyncio.Task[Result] | None = None

        async def main() -> Result:
            nonlocal task
            task = asyncio.create_task(coro)
            return await task

        result = asyncio.run_coroutine_threadsafe(main(), self._loop)
        try:
            return result.result()
        except KeyboardInterrupt:
            if task is not None:
                self._loop.call_soon_threadsafe(task.cancel)
                with contextlib.suppress(CancelledError):
                    result.result()
            raise
