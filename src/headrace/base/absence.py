"""Tells the log of what a loop needs and cannot have, however often the loop tries.

    goes ── one line      still away ── one line a minute      is back ── one line, with how long

Loops try several times a second, and a store may be away for hours: a line each time would bury
what else the log says. What comes and goes all the time is told of once a minute as well.
"""

import logging

from headrace.base.clock import Clock

told_interval_s = 60.0  # between lines while something is away, and between lines that it went


class Absence:
    """Whether one thing is away, as one loop sees it; one thread at a time uses it."""

    def __init__(self, log: logging.Logger, clock: Clock, waits: str, goes_on: str) -> None:
        """`waits` and `goes_on` are clauses, such as "alerts wait for the store"."""
        self._log = log
        self._clock = clock
        self._waits = waits
        self._goes_on = goes_on
        self._since_s: float | None = None  # None: it is there
        self._told_s: float | None = None
        self._is_told = False  # that it went this time

    @property
    def is_on(self) -> bool:
        """Whether it was away the last time."""
        return self._since_s is not None

    def note(self, error: BaseException | str) -> None:
        """It is away, or still is, for this reason."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s, self._is_told = now_s, False
        if self._told_s is not None and now_s - self._told_s < told_interval_s:
            return
        away_s = now_s - self._since_s
        by_now = f", for {away_s:.0f} s by now" if away_s >= 1.0 else ""
        self._log.warning("%s%s: %s", self._waits, by_now, error)
        self._told_s, self._is_told = now_s, True

    def end(self) -> None:
        """It is there; nothing is said if nothing was said of its absence."""
        if self._since_s is not None and self._is_told:
            away_s = self._clock.monotonic_s() - self._since_s
            self._log.warning("%s, after %.1f s", self._goes_on, away_s)
        self._since_s = None
