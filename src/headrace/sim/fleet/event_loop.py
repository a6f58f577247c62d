"""Virtual time: calls to come, run in the order of their times and, at equal times, of asking.

Nothing waits: the clock jumps to the next call. The same calls in give the same order out, whatever
the machine does, because no thread, no real clock and no hash order takes part.

    heap      calls at any time
    messages  calls after one constant delay, which are in order by themselves: nothing is sifted

A call cannot be taken back. Who may have changed its mind passes a version along and compares
(`AggregateEngine`), which costs less than a search in the heap.

Simulations run on the same in C++ (`machinery`, `csrc/sim/`); this one says what that has to do.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Argument = TypeVar("Argument")
Call = tuple[float, int, Callable[[Any], None], Any]  # each call has its own argument type

wall_start_s = 1_800_000_000.0  # so that records have a date


class Loop(Protocol):
    """The calls to come, in Python or C++."""

    now_s: float

    def at(self, time_s: float, call: Callable[[Argument], None], argument: Argument) -> None:
        """Call `call(argument)` at `time_s`, which is not in the past."""
        ...

    def after(self, delay_s: float, call: Callable[[Argument], None], argument: Argument) -> None:
        """Call `call(argument)` in `delay_s` seconds."""
        ...

    @property
    def is_last_of_moment(self) -> bool:
        """Whether no other call is to come at this very time."""
        ...

    @property
    def events_total(self) -> int:
        """Calls that have run."""
        ...

    @property
    def pending_count(self) -> int:
        """Calls that have not run yet."""
        ...

    def check_after_each(self, check: Callable[[], None]) -> None:
        """Call `check` after every event."""
        ...

    def run(self, until_s: float = ..., events_max: int | None = ...) -> None:
        """Run calls up to `until_s`, or until there are none or `events_max` have run."""
        ...

    def monotonic_s(self) -> float:
        """Virtual seconds since the start."""
        ...

    def set_wall(self, jump_s: float) -> None:
        """Somebody sets the wall clock; virtual time goes on as before."""
        ...

    def wall_s(self) -> float:
        """A fixed date plus the virtual seconds."""
        ...


class EventLoop:
    """The calls to come; also the `Clock` of everything that is simulated."""

    __slots__ = (
        "_after_each",
        "_calls",
        "_message_delay_s",
        "_messages",
        "_order",
        "_wall_offset_s",
        "events_total",
        "now_s",
    )

    def __init__(self, message_delay_s: float = 0.0) -> None:
        """`message_delay_s` is the delay that most calls of `after` have, a network's latency."""
        self.now_s = 0.0
        self.events_total = 0
        self._calls: list[Call] = []
        self._messages: deque[Call] = deque()
        self._message_delay_s = message_delay_s
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
        assert delay_s >= 0.0, "a call in the past"
        self._order += 1
        coming = (self.now_s + delay_s, self._order, call, argument)
        if delay_s == self._message_delay_s:
            self._messages.append(coming)
        else:
            heapq.heappush(self._calls, coming)

    @property
    def is_last_of_moment(self) -> bool:
        """Whether no other call is to come at this very time."""
        now_s, calls, messages = self.now_s, self._calls, self._messages
        return not (calls and calls[0][0] <= now_s) and not (messages and messages[0][0] <= now_s)

    def check_after_each(self, check: Callable[[], None]) -> None:
        """Call `check` after every event."""
        self._after_each = check

    def run(self, until_s: float = float("inf"), events_max: int | None = None) -> None:
        """Run calls up to `until_s`, or until there are none or `events_max` have run."""
        calls, messages, check = self._calls, self._messages, self._after_each
        pop, pop_message = heapq.heappop, messages.popleft
        left = -1 if events_max is None else events_max
        while left:
            if messages and not (calls and calls[0] < messages[0]):
                if messages[0][0] > until_s:
                    return
                self.now_s, _, call, argument = pop_message()
            elif calls and calls[0][0] <= until_s:
                self.now_s, _, call, argument = pop(calls)
            else:
                return
            call(argument)
            self.events_total += 1
            left -= 1
            if check is not None:
                check()

    @property
    def pending_count(self) -> int:
        """Calls that have not run yet."""
        return len(self._calls) + len(self._messages)

    def monotonic_s(self) -> float:
        """Virtual seconds since the start."""
        return self.now_s

    def set_wall(self, jump_s: float) -> None:
        """Somebody sets the wall clock; virtual time goes on as before."""
        self._wall_offset_s += jump_s

    def wall_s(self) -> float:
        """A fixed date plus the virtual seconds."""
        return self._wall_offset_s + self.now_s
