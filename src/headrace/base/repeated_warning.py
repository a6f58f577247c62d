"""Tells the log of faults that may come thousands of times a second: one line a minute at most.

    first ── one line      in the minute after it ── counted      next ── one line, with the count

`base/absence.py` is for what is away and comes back; this is for faults that stand alone.
"""

import logging

from headrace.base.clock import Clock

told_interval_s = 60.0  # between lines


class RepeatedWarning:
    """The warnings of one kind, whoever caused them; one thread at a time uses it."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told_s: float | None = None  # None: nothing was told yet
        self._untold_count = 0

    def note(self, source: str, problem: object) -> None:
        """It came once more, from this source; the log names the source that it is told of."""
        now_s = self._clock.monotonic_s()
        if self._told_s is not None and now_s - self._told_s < told_interval_s:
            self._untold_count += 1
            return
        more = f" ({self._untold_count} more since the last line)" if self._untold_count else ""
        self._log.warning("%s: %s%s", source, problem, more)
        self._told_s, self._untold_count = now_s, 0
