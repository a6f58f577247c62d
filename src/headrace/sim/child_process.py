"""What tests and benchmarks do with a command of ours that runs as a child."""

import asyncio
import signal
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

end_timeout_s = 60.0
look_interval_s = 0.05


class ChildProcess:
    """A child that ends with the block: `with SomeChild(...) as child:`."""

    process: subprocess.Popen[Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """Ask it to end and wait until it has; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(end_timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until it is so; whoever calls this bounds it."""
    pause = threading.Event()
    while not condition():
        pause.wait(look_interval_s)


async def until(condition: Callable[[], bool]) -> None:
    """The same on an event loop, each look in a thread.

    `wait_until` in a thread would outlive the test that waited too long, and the run with it."""
    while True:
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(look_interval_s)
