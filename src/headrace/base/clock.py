"""Time as an argument, so that every deciding module runs on a virtual clock too."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic_s(self) -> float:
        """Seconds that only go forward; for durations and deadlines."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; for records that people read."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()
