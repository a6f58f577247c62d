"""Clocks that move only when told, or only when asked."""


class ManualClock:
    """Time under the test's control; both scales move together unless one is set."""

    def __init__(self, wall_s: float = 1_800_000_000.0) -> None:
        self._monotonic_s = 0.0
        self._wall_start_s = wall_s

    def monotonic_s(self) -> float:
        """Seconds advanced so far."""
        return self._monotonic_s

    def wall_s(self) -> float:
        """The starting wall time plus what was advanced."""
        return self._wall_start_s + self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        assert seconds >= 0
        self._monotonic_s += seconds

    def set_wall(self, seconds: float) -> None:
        """Have somebody set the wall clock forward, or back if it is negative."""
        self._wall_start_s += seconds


class SteppingClock(ManualClock):
    """Time that passes whenever it is asked for, so that nothing takes no time."""

    step_s = 0.001

    def monotonic_s(self) -> float:
        """One step later than the last time."""
        self.advance(self.step_s)
        return super().monotonic_s()
