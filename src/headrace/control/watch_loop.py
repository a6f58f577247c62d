"""The loop of everything that looks at the store again and again while this control plane leads."""

import asyncio
import logging
from collections.abc import Callable

from headrace.base.errors import HeadraceError

logger = logging.getLogger(__name__)


async def look_again(
    look: Callable[[], object],
    stop: asyncio.Event,
    leads: Callable[[], bool],
    *,
    interval_s: float,
    what: str,
) -> None:
    """Call `look` in a thread every `interval_s`, until told to stop.

    While the store can't be had, `what` (in the plural) waits for it, and that is logged once."""
    failing = False
    while not stop.is_set():
        try:
            if leads():
                await asyncio.to_thread(look)
            failing = False
        except HeadraceError as error:
            if not failing:
                logger.warning("%s wait for the store: %s", what, error.message)
            failing = True
        try:
            async with asyncio.timeout(interval_s):
                await stop.wait()
        except TimeoutError:
            continue
