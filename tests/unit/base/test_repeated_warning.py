"""What comes again and again is one line a minute, which says how often it came."""

import logging

import pytest

from headrace.base.repeated_warning import RepeatedWarning
from headrace.sim.clock import ManualClock

log = logging.getLogger("headrace.test_repeated_warning")


def test_a_thousand_faults_are_a_line_a_minute_with_their_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    warning = RepeatedWarning(log, clock)
    for number in range(1_000):  # 125 s
        warning.note("tcp://a:1", f"fault {number}")
        clock.advance(0.125)
    assert caplog.messages == [
        "tcp://a:1: fault 0",
        "tcp://a:1: fault 480 (479 more since the last line)",
        "tcp://a:1: fault 960 (479 more since the last line)",
    ]


def test_what_comes_seldom_is_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    warning = RepeatedWarning(log, clock)
    for source in ("a", "b"):
        warning.note(source, "x")
        clock.advance(60.0)
    assert caplog.messages == ["a: x", "b: x"]
