"""A timeout that a stalled event loop does not use up.

Where a process gets no processor for seconds, all of its timers are due at once, before the loop
has looked at what came meanwhile; `asyncio.timeout` would give up a connection that is there
already. Here the limit passes in parts, each begun when the loop saw the one before it end.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

parts = 8  # a stall costs one of them; a connection takes three or four turns of the loop


@asynccontextmanager
async def patience(limit_s: float) -> AsyncIterator[None]:
    """TimeoutError after `limit_s` in which the loop turned, or longer where it did not."""
    loop = asyncio.get_running_loop()
    parts_left = parts
    timer: asyncio.TimerHandle | None = None
    async with asyncio.timeout(None) as timeout:

        def end_part() -> None:
            nonlocal parts_left, timer
            parts_left -= 1
            if parts_left:
                timer = loop.call_later(limit_s / parts, end_part)
            else:
                timeout.reschedule(loop.time())

        timer = loop.call_later(limit_s / parts, end_part)
        try:
            yield
        finally:
            timer.cancel()
