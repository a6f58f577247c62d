"""Goodput by model over the last hours, and how fast its error budget burns.

    good share   of the requests that ended other than by their caller's doing, those that finished
                 within their model's objectives
    burn rate    (1 - good share) / (1 - target): at 1 the budget of 30 days lasts 30 days, at 14.4
                 a fiftieth of it goes in an hour; the alerts' factors

A look at the totals is kept a minute; a window compares now with the oldest look inside it. Nothing
is stored: a control plane that restarts begins anew, and says over how long it looked.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.control.traffic import TrafficBook

target = 0.99  # as the alert's objective, for every model
windows_s = (300.0, 3600.0, 21600.0)
look_interval_s = 60.0
looks_max = 361  # six hours

Counts = tuple[int, int]  # judged, good


@dataclass(frozen=True, slots=True)
class WindowGoodput:
    """What became of one model's requests in one window."""

    window_s: float
    observed_s: float  # the part of the window that was looked at
    requests: int
    good_requests: int

    @property
    def good_share(self) -> float | None:
        """The goodput as a share; None where there was nothing to judge."""
        return self.good_requests / self.requests if self.requests else None

    @property
    def burn_rate(self) -> float | None:
        """How many times too fast the error budget is used."""
        share = self.good_share
        return None if share is None else (1 - share) / (1 - target)


class GoodputHistory:
    """Looks at the traffic book's totals, at most `looks_max`."""

    def __init__(self, book: TrafficBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._looks: deque[tuple[float, Mapping[str, Counts]]] = deque(maxlen=looks_max)

    def take(self, models: Iterable[str]) -> None:
        """Look, unless that was done within the last minute."""
        now_s = self._clock.monotonic_s()
        if not self._looks or now_s - self._looks[-1][0] >= look_interval_s:
            self._looks.append((now_s, {name: self._counts(name) for name in models}))

    def of(self, model: str) -> list[WindowGoodput]:
        """One model's goodput over each window, the shortest first."""
        now_s = self._clock.monotonic_s()
        judged, good = self._counts(model)
        found = []
        for window_s in windows_s:
            since_s, before = self._oldest(now_s - window_s, now_s)
            judged_then, good_then = before.get(model, (0, 0))
            found.append(
                WindowGoodput(
                    window_s,
                    now_s - since_s,
                    max(0, judged - judged_then),
                    max(0, good - good_then),
                )
            )
        return found

    def _oldest(self, begin_s: float, now_s: float) -> tuple[float, Mapping[str, Counts]]:
        """The first look since then; nothing is known where there is none."""
        for look in self._looks:
            if look[0] >= begin_s:
                return look
        return now_s, {}

    def _counts(self, model: str) -> Counts:
        totals = self._book.arrived(model)
        return totals.judged, totals.good
