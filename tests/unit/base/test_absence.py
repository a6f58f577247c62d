"""What a loop cannot have is told when it goes, once a minute, and when it is back."""

import logging

import pytest

from headrace.base.absence import Absence
from headrace.sim.clock import ManualClock

log = logging.getLogger("headrace.test_absence")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def absence(clock: ManualClock) -> Absence:
    return Absence(log, clock, "alerts wait for the store", "alerts go on")


def test_an_absence_is_told_when_it_begins_each_minute_and_when_it_ends(
    absence: Absence, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):  # 150 s
        absence.note("no answer")
        clock.advance(0.25)
    assert absence.is_on
    absence.end()
    absence.end()
    assert not absence.is_on
    assert caplog.messages == [
        "alerts wait for the store: no answer",
        "alerts wait for the store, for 60 s by now: no answer",
        "alerts wait for the store, for 120 s by now: no answer",
        "alerts go on, after 150.0 s",
    ]


def test_what_comes_and_goes_is_told_once_a_minute(
    absence: Absence, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(240):  # 120 s
        absence.note("no answer")
        clock.advance(0.25)
        absence.end()
        clock.advance(0.25)
    assert (
        caplog.messages
        == [
            "alerts wait for the store: no answer",
            "alerts go on, after 0.2 s",
        ]
        * 2
    )


def test_an_absence_that_began_unsaid_is_told_once_it_lasts(
    absence: Absence, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    absence.note("no answer")
    absence.end()
    clock.advance(10.0)
    absence.note("no answer")
    clock.advance(50.0)
    absence.note("no answer")
    assert caplog.messages[2:] == ["alerts wait for the store, for 50 s by now: no answer"]


def test_what_is_there_is_not_told(absence: Absence, caplog: pytest.LogCaptureFixture) -> None:
    absence.end()
    assert not caplog.messages
