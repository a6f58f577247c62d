"""A deadline is one moment, whoever asks."""

from headrace.base.deadline import Deadline
from headrace.sim.clock import ManualClock


def test_a_deadline_runs_down_and_never_below_zero() -> None:
    clock = ManualClock()
    deadline = Deadline.after(clock, 5.0)
    clock.advance(2.0)
    assert deadline.remaining_s(clock) == 3.0
    assert not deadline.passed(clock)
    clock.advance(3.0)
    assert deadline.passed(clock)
    clock.advance(1.0)
    assert deadline.remaining_s(clock) == 0.0


def test_no_deadline_never_passes() -> None:
    clock = ManualClock()
    clock.advance(10.0**9)
    assert not Deadline().passed(clock)
