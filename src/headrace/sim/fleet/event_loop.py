"""Virtual time: a heap of calls, run in the order of their times and, at equal times, of asking.

Nothing waits: the clock jumps to the next call. The same calls in give the same order out, whatever
the machine does, because no thread, no real clock and no hash order takes part.

A call cannot be taken back. Who may have changed its mind passes a version along and compares
(`AggregateEngine`), which costs less than a search in the heap.
"""

import heapq
from collections.abc import Callable
from typing import Any, TypeVar

Argument = TypeVar("Argument")
Call = tuple[float, int, Callable[[Any], None], Any]  # each call has its own argument type

wall_start_s = 1_800_000_000.0  # so that records have a date


class EventLoop:
    """The calls to come; also the `Clock` of everything that is simulated."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events_total = 0
        self._calls: list[Call] = []
        self._order = 0
        self._after_each: Callable[[], None] | None = None
        self._wall_offset_s = wall_start_s

    def at(self, time_s: float, call: Callable[[Argument], None], argument: Argument) -> None:
        """Call `call(argument)` at `time_s`, which is not in the past."""
        assert time_s >= self.now_s, "a call in the past"
        self._order += 1
        heapq.heappush(self._calls, (time_s, self._order, call, argument))

    def after(self, delay_s: float, call: Callable[[Argument], None], argument: Argument) -> None:
        """Call `call(argument)` in `delay_s` seconds."""
        self.at(self.now_s + delay_s, call, argument)

    def check_after_each(self, check: Callable[[], None]) -> None:
        """Call `check` after every event."""
        self._after_each = check

    def run(self, until_s: float = float("inf"), events_max: int | None = None) -> None:
        """Run calls up to `until_s`, or until there are none or `events_max` have run."""
        calls, pop, check = self._calls, heapq.heappop, self._after_each
        left = -1 if events_max is None else events_max
        while calls and left and calls[0][0] <= until_s:
            self.now_s, _, call, argument = pop(calls)
            call(argument)
            self.events_total += 1
            left -= 1
            if check is not None:
                check()

    @property
    def pending_count(self) -> int:
        """Calls that have not run yet."""
        return len(self._calls)

    def monotonic_s(self) -> float:
        """Virtual seconds since the start."""
        return self.now_s

    def set_wall(self, jump_s: float) -> None:
        """Somebody sets the wall clock; virtual time goes on as before."""
        self._wall_offset_s += jump_s

    def wall_s(self) -> float:
        """A fixed date plus the virtual seconds."""
        return self._wall_offset_s + self.now_s
