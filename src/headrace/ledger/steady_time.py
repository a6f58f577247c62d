"""Wall time for limits: a clock that is set moves it only once it has stayed so for a minute.

    wall clock   ───┐ set wrong ┌─── set right        ───┐ set right, or the machine slept
    this time    ─────────────────────────────────    ───── believed_after_s ──┐
                                                                               └──────────

So a clock that is wrong for a moment neither gives a minute, a day or a budget anew nor takes one
away. Small corrections, as NTP makes them all the time, are followed at once.
"""

from headrace.base.clock import Clock

step_s_min = 1.0  # what moves a clock by less is followed at once
believed_after_s = 60.0  # time servers have set a clock right by then that they set wrong


class SteadyTime:
    """The time of one limiter; whoever locks that calls it."""

    __slots__ = ("_clock", "_offset_s", "_step_s", "_stepped_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.wall_s() - clock.monotonic_s()
        self._step_s = 0.0  # by how much the clock is off that, lately
        self._stepped_s = 0.0  # since when, on the monotonic clock

    def now_s(self) -> float:
        """Seconds since the Unix epoch; goes back by less than `step_s_min`, or by a whole step."""
        monotonic_s = self._clock.monotonic_s()
        step_s = self._clock.wall_s() - monotonic_s - self._offset_s
        if abs(step_s) < step_s_min:
            self._follow(step_s)
        elif abs(step_s - self._step_s) >= step_s_min:  # it was set just now
            self._step_s, self._stepped_s = step_s, monotonic_s
        elif monotonic_s - self._stepped_s >= believed_after_s:
            self._follow(step_s)
        return monotonic_s + self._offset_s

    def _follow(self, step_s: float) -> None:
        self._offset_s += step_s
        self._step_s = 0.0
