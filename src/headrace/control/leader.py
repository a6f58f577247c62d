"""Whether this control plane is the one that acts; asked of the database before every change."""

import asyncio
import logging
from typing import Protocol

logger = logging.getLogger(__name__)

retry_interval_s = 1.0  # how late a free place is noticed


class Leadership(Protocol):
    """The part of `storage.leadership` that is needed here."""

    def acquire(self) -> bool:
        """Lead if nobody else does."""
        ...

    def renew(self) -> bool:
        """Whether it still leads."""
        ...

    def release(self) -> None:
        """Let another one lead."""
        ...


class Leader:
    """One candidate among the control planes; its questions to the database never overlap."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._asking = asyncio.Lock()
        self.leads = False  # as of the last question

    async def ask(self) -> bool:
        """Lead if it is possible; called now and then."""
        async with self._asking:
            leads = await asyncio.to_thread(self._leadership.acquire)
        if leads != self.leads:
            logger.info("this control plane %s", "leads now" if leads else "leads no more")
        self.leads = leads
        return leads

    async def confirm(self) -> bool:
        """Whether it still leads, asked right before it acts."""
        async with self._asking:
            self.leads = await asyncio.to_thread(self._leadership.renew)
        return self.leads

    async def resign(self) -> None:
        """Let another one lead at once."""
        async with self._asking:
            self.leads = False
            await asyncio.to_thread(self._leadership.release)


class Alone:
    """Leadership where there is only one control plane."""

    def acquire(self) -> bool:
        """Always."""
        return True

    def renew(self) -> bool:
        """Always."""
        return True

    def release(self) -> None:
        """Nothing to let go of."""
