"""What the engine's prefix cache holds, as a bounded log of changes that routers follow.

Each change has a sequence number; a reader says which it has seen and gets what came after. One who
was away for longer than the log reaches back starts anew from the whole content, which is kept too.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

changes_max = 65_536  # kept for readers; at 16 tokens a block a million prompt tokens


class LoggedChange(NamedTuple):
    """One change; `content_hash` is None where everything is gone."""

    sequence: int
    stored: bool
    content_hash: bytes | None


class CacheLog:
    """The changes since this process began, and what they add up to."""

    def __init__(self, changes_max: int = changes_max) -> None:
        self.last_sequence = 0
        self._changes: deque[LoggedChange] = deque(maxlen=changes_max)
        self._held: dict[bytes, None] = {}
        self._grown = asyncio.Event()

    @property
    def held(self) -> tuple[bytes, ...]:
        """The hashes of all blocks that can be found now, the oldest first."""
        return tuple(self._held)

    def add(self, changes: Iterable[tuple[bool, bytes]]) -> None:
        """Take in what the engine says."""
        for stored, content_hash in changes:
            if stored:
                self._held[content_hash] = None
            else:
                self._held.pop(content_hash, None)
            self._append(stored, content_hash)
        self._wake()

    def clear(self) -> None:
        """The engine is gone, and its cache with it."""
        if self._held:
            self._held.clear()
            self._append(False, None)
            self._wake()

    def since(self, sequence: int) -> list[LoggedChange] | None:
        """The changes after this one; None if the log does not reach back so far."""
        missed = self.last_sequence - sequence
        if not 0 <= missed <= len(self._changes):
            return None
        return list(islice(self._changes, len(self._changes) - missed, None))

    async def wait_beyond(self, sequence: int, timeout_s: float) -> None:
        """Wait until there is a change after this one, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.last_sequence == sequence:
                    await self._grown.wait()
        except TimeoutError:
            return

    def _append(self, stored: bool, content_hash: bytes | None) -> None:
        self.last_sequence += 1
        self._changes.append(LoggedChange(self.last_sequence, stored, content_hash))

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
