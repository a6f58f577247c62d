"""Keeps the loops of a process running: one that raises is logged, counted and started again.

    run ──raises──> pause (doubles, up to `pause_s_max`) ──> run
     │                └── nothing raised for `quiet_s`: the pauses begin anew
     └──returns──> it was told to stop

A loop that ended by a fault which nobody foresaw would be missed by nobody until what it does is:
no alert, no lease, no new replica. Loops that outlive their faults by themselves note them here, so
that one place tells of all. What a loop expects, such as a store that is away, is no fault.
"""

import asyncio
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.redaction import Redactor

pause_s_min = 0.5
pause_s_max = 60.0
quiet_s = 2 * pause_s_max  # after which the next fault is a first one again
keeps_failing_min = 3  # faults in a row

log = logging.getLogger(__name__)
Loop = Callable[[], Awaitable[None]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]


@dataclass(slots=True)
class Faults:
    """The faults of one loop."""

    total: int = 0
    in_row: int = 0
    last_s: float = 0.0  # monotonic
    kind: str = ""  # of the last one


async def pause_unless(stop: asyncio.Event, seconds: float) -> None:
    """Return after `seconds`, or as soon as `stop` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


class LoopKeeper:
    """The loops of one process, by name; any thread may ask how they are."""

    def __init__(self, clock: Clock, pause: Pause = pause_unless) -> None:
        """`pause` waits for seconds, or until an event is set."""
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._faults: dict[str, Faults] = {}

    def start(self, name: str, loop: Loop, stop: asyncio.Event | None = None) -> asyncio.Task[None]:
        """Keep a loop running in a task, until it returns, `stop` is set or the task is cancelled.

        The task raises nothing but its cancellation."""
        self.know(name)
        return asyncio.create_task(self._keep(name, loop, stop or asyncio.Event()), name=name)

    async def _keep(self, name: str, loop: Loop, stop: asyncio.Event) -> None:
        while True:
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 -- noted, with its traceback
                await self._pause(stop, self.note(name, error))
                if stop.is_set():
                    return
            else:
                return

    def keep_here(self, name: str, loop: Callable[[], None], stop: threading.Event) -> None:
        """The same for a loop that is a thread's own: this one's."""
        self.know(name)
        while True:
            try:
                loop()
            except Exception as error:  # noqa: BLE001 -- noted, with its traceback
                if stop.wait(self.note(name, error)):
                    return
            else:
                return

    def know(self, name: str) -> None:
        """Tell of a loop from now on, also while it has no fault."""
        with self._lock:
            self._faults.setdefault(name, Faults())

    def note(self, name: str, error: BaseException) -> float:
        """Log and count a fault; how long to wait before the loop goes on, in seconds."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            faults = self._faults.setdefault(name, Faults())
            is_first = not faults.in_row or now_s - faults.last_s >= quiet_s
            faults.in_row = 1 if is_first else faults.in_row + 1
            faults.total += 1
            faults.last_s, faults.kind = now_s, type(error).__name__
            pause_s = min(pause_s_max, pause_s_min * 2.0 ** min(faults.in_row - 1, 16))
            in_row = faults.in_row
        log.error(
            "the loop %s failed, %d in a row; again in %g s\n%s",
            name,
            in_row,
            pause_s,
            told(error),
        )
        return pause_s

    def totals(self) -> Mapping[str, float]:
        """How often each loop failed so far, by name."""
        with self._lock:
            return {name: float(faults.total) for name, faults in self._faults.items()}

    def complaint(self) -> str:
        """Which loops keep failing, in words; empty: none does."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            failing = [
                f"{name} ({faults.in_row} times in a row, {faults.kind})"
                for name, faults in sorted(self._faults.items())
                if faults.in_row >= keeps_failing_min and now_s - faults.last_s < quiet_s
            ]
        return f"keeps failing: {', '.join(failing)}; the log says why" if failing else ""


def told(error: BaseException) -> str:
    """Where and why something was raised, without what looks like a secret."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return Redactor(()).clean(text.encode()).decode(errors="replace")
