"""One point in time passed down a call chain, instead of a timeout for each layer."""

import math
from dataclasses import dataclass

from headrace.base.clock import Clock


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a clock's monotonic scale; `math.inf` means none."""

    at_s: float = math.inf

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> "Deadline":
        """The moment `seconds` from now."""
        return cls(clock.monotonic_s() + seconds)

    def remaining_s(self, clock: Clock) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - clock.monotonic_s())

    def passed(self, clock: Clock) -> bool:
        """Whether the moment has come."""
        return clock.monotonic_s() >= self.at_s
