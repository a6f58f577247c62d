"""How long a refused request is told to wait."""

import pytest

from headrace.engine.drain_rate import DrainRate


def test_the_answer_follows_the_measured_rate() -> None:
    rate = DrainRate()
    for second in range(5):
        rate.record(second * 2.0)
    assert rate.retry_after_s(8.0) == pytest.approx(2.0)
    assert rate.retry_after_s(8.0, places=3) == pytest.approx(6.0)


def test_a_stalled_queue_gives_longer_answers() -> None:
    rate = DrainRate()
    rate.record(0.0)
    rate.record(1.0)
    assert rate.retry_after_s(30.0) == pytest.approx(30.0)
    assert rate.retry_after_s(3000.0) == 60.0


def test_an_unmeasured_queue_gives_the_default_and_a_fast_one_the_minimum() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(0.0) == 1.0
    rate.record(0.0)
    assert rate.retry_after_s(0.0) == 1.0
    rate.record(0.0)
    assert rate.retry_after_s(0.0) == 0.05


def test_old_events_are_forgotten() -> None:
    rate = DrainRate()
    for _ in range(64):
        rate.record(0.0)
    for index in range(64):
        rate.record(100.0 + index)
    assert rate.retry_after_s(163.0) == pytest.approx(1.0)
