"""When an engine's stream came, apart from what the reader of the relayed one held up.

A reader that is slow stops the relay, and then what the engine sends lies unread: the engine took
no less than the relay waited for it, and no more than passed until its last piece was read.
"""

from typing import Protocol

from headrace.base.clock import Clock


class Out(Protocol):
    """Where a stream is relayed to."""

    async def write(self, data: bytes) -> None:
        """Send a piece; waits while its reader is congested."""
        ...


class Pace:
    """The times of one attempt's stream; all in seconds."""

    __slots__ = ("_clock", "_held_s", "_held_until_arrival_s", "arrived_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held_s = 0.0
        self._held_until_arrival_s = 0.0
        self.arrived_s = clock.monotonic_s()  # when the newest piece was read

    def arrived(self) -> None:
        """A piece was read."""
        self.arrived_s = self._clock.monotonic_s()
        self._held_until_arrival_s = self._held_s

    async def write(self, out: Out, data: bytes) -> None:
        """Relay a piece; how long that takes is the reader's time and not the engine's."""
        start_s = self._clock.monotonic_s()
        await out.write(data)
        self._held_s += self._clock.monotonic_s() - start_s

    def bounds_s(self, since_s: float) -> tuple[float, float]:
        """The least and the most that the engine took from `since_s`, when its first output was
        read, to the newest piece."""
        most_s = max(0.0, self.arrived_s - since_s)
        return max(0.0, most_s - self._held_until_arrival_s), most_s
