"""The loop of everything that looks at the store again and again while this control plane leads."""

import asyncio
from collections.abc import Callable

from headrace.base.absence import Absence
from headrace.base.errors import HeadraceError
from headrace.base.loops import Pause, pause_unless


async def look_again(
    look: Callable[[], object],
    stop: asyncio.Event,
    leads: Callable[[], bool],
    *,
    interval_s: float,
    absence: Absence,
    pause: Pause = pause_unless,
) -> None:
    """Call `look` in a thread every `interval_s`, until told to stop.

    While the store can't be had, `absence` tells of it. `pause` waits for seconds, or until an
    event is set."""
    while not stop.is_set():
        try:
            if leads():
                await asyncio.to_thread(look)
                absence.end()
        except HeadraceError as error:
            absence.note(error)
        await pause(stop, interval_s)
