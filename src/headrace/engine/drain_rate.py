"""How fast the waiting queue drains, measured, so that a refusal can say when to come back."""

from collections import deque

window_events_max = 64  # enough to smooth a burst, few enough to follow a change of load
retry_after_s_default = 1.0  # before anything was measured
retry_after_s_min = 0.05
retry_after_s_max = 60.0


class DrainRate:
    """Requests that left the queue, over the time they took."""

    def __init__(self) -> None:
        self._left_at_s: deque[float] = deque(maxlen=window_events_max)

    def record(self, now_s: float) -> None:
        """One more request has left the queue."""
        self._left_at_s.append(now_s)

    def retry_after_s(self, now_s: float, places: int = 1) -> float:
        """Seconds until `places` more requests will have left, at the measured rate.

        The time since the last one counts too, so a queue that stalls gives longer answers."""
        if len(self._left_at_s) < 2:
            return retry_after_s_default
        elapsed_s = now_s - self._left_at_s[0]
        seconds = places * elapsed_s / (len(self._left_at_s) - 1)
        return min(max(seconds, retry_after_s_min), retry_after_s_max)
