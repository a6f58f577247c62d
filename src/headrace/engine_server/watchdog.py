"""Whether an engine process that is there still works: judged by its steps, never by its silence.

    ALIVE   its steps go on, or it answers and has nothing to do
    HUNG    none of that for `hung_after_s`: nothing new is sent to it
    LOST    none of that for `step_timeout_s`: the process is ended

`step_timeout_s` must be above the longest honest step: a full chunk of a large model on a slow
machine takes many seconds.
"""

from enum import Enum

from headrace.engine_server.messages import Stats

hung_after_default_s = 10.0
checks_per_patience = 4
# Why requests wait for something that is not the scheduler's (`wire.wire_stats`).
reasons_elsewhere = ("grammar", "kv_transfer")


class Verdict(Enum):
    """What is known of the engine now."""

    ALIVE = "alive"
    HUNG = "hung"
    LOST = "lost"


class Watchdog:
    """Compares an engine's counters over time."""

    def __init__(self, step_timeout_s: float, hung_after_s: float = hung_after_default_s) -> None:
        self._step_timeout_s = step_timeout_s
        self._hung_after_s = min(hung_after_s, step_timeout_s)
        self.interval_s = self._hung_after_s / checks_per_patience
        self._steps = -1
        self._alive_s = 0.0

    def start(self, now_s: float) -> None:
        """A new engine process is ready."""
        self._steps = -1
        self._alive_s = now_s

    def judge(self, stats: Stats | None, now_s: float) -> Verdict:
        """What these counters mean; None is an engine that did not answer."""
        if stats is not None:
            if not _work_of_steps(stats) or stats.steps_total != self._steps:
                self._alive_s = now_s
            self._steps = stats.steps_total
        if self.silent_s(now_s) >= self._step_timeout_s:
            return Verdict.LOST
        return Verdict.HUNG if self.silent_s(now_s) >= self._hung_after_s else Verdict.ALIVE

    def silent_s(self, now_s: float) -> float:
        """How long nothing has shown that the engine works."""
        return now_s - self._alive_s


def _work_of_steps(stats: Stats) -> int:
    """How many requests only steps can serve: a grammar or KV that is waited for comes without."""
    elsewhere = sum(stats.waiting_by_reason.get(reason, 0) for reason in reasons_elsewhere)
    return stats.running_requests + stats.waiting_requests - elsewhere
