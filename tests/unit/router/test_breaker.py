"""Ejection and half-open probes."""

from headrace.router.breaker import (
    Breaker,
    BreakerState,
    ejection_s_max,
    ejection_s_min,
    failed_in_row_max,
)


def test_a_failure_ejects_at_once_and_time_lets_one_probe_in() -> None:
    breaker = Breaker()
    breaker.fail(10.0, is_probe=False)
    assert not breaker.permits(10.0)
    assert breaker.retry_after_s(10.0) == ejection_s_min
    assert breaker.permits(10.0 + ejection_s_min)
    assert breaker.begin(10.0 + ejection_s_min)
    assert not breaker.permits(10.0 + ejection_s_min)
    breaker.succeed(10.0 + ejection_s_min, is_probe=True)
    assert breaker.permits(10.0 + ejection_s_min)


def test_many_failures_of_one_crash_count_once() -> None:
    breaker = Breaker()
    for _ in range(30):
        breaker.fail(0.0, is_probe=False)
    assert breaker.retry_after_s(0.0) == ejection_s_min


def test_failed_probes_double_the_ejection_up_to_the_bound() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    now_s, waits_s = 0.0, []
    for _ in range(12):
        waits_s.append(breaker.retry_after_s(now_s))
        now_s += waits_s[-1]
        assert breaker.begin(now_s)
        breaker.fail(now_s, is_probe=True)
    assert waits_s[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits_s[-1] == ejection_s_max


def test_an_older_success_does_not_end_an_ejection() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    breaker.succeed(0.0, is_probe=False)
    assert breaker.state is BreakerState.OPEN


def test_an_abandoned_probe_leaves_the_next_one_free() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    assert breaker.begin(ejection_s_min)
    breaker.abandon_probe()
    assert breaker.permits(ejection_s_min)


def test_an_answer_to_a_request_that_went_there_all_the_same_readmits() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    assert not breaker.begin(0.1)
    breaker.succeed(0.1, is_probe=False)
    assert breaker.state is BreakerState.CLOSED
    breaker.fail(1.0, is_probe=False)
    assert breaker.retry_after_s(1.0) == ejection_s_min


def test_a_failure_of_such_a_request_does_not_lengthen_the_ejection() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    for moment in range(1, 5):
        assert not breaker.begin(moment / 10)
        breaker.fail(moment / 10, is_probe=False)
    assert breaker.permits(ejection_s_min)


def test_a_probe_that_is_abandoned_after_another_answer_changes_nothing() -> None:
    breaker = Breaker()
    breaker.fail(0.0, is_probe=False)
    assert breaker.begin(ejection_s_min)
    assert not breaker.begin(ejection_s_min)
    breaker.succeed(ejection_s_min, is_probe=False)
    breaker.abandon_probe()
    assert breaker.state is BreakerState.CLOSED


def test_only_a_row_of_failed_requests_ejects_and_a_good_answer_ends_a_row() -> None:
    breaker = Breaker()
    for _ in range(3):
        for _ in range(failed_in_row_max - 1):
            assert not breaker.fail_request(1.0, 1.0, is_probe=False)
        assert breaker.state is BreakerState.CLOSED
        breaker.answer(1.0, is_probe=False)  # it answers, and whether well is not known yet
        assert breaker.state is BreakerState.CLOSED
        breaker.succeed(1.0, is_probe=False)
    for _ in range(failed_in_row_max - 1):
        breaker.answer(1.0, is_probe=False)
        assert not breaker.fail_request(1.0, 1.0, is_probe=False)
    assert breaker.fail_request(1.0, 1.0, is_probe=False)
    assert breaker.retry_after_s(1.0) == ejection_s_min


def test_a_probe_that_fails_as_its_row_did_doubles_the_ejection() -> None:
    breaker = Breaker()
    for _ in range(failed_in_row_max):
        breaker.fail_request(0.0, 0.0, is_probe=False)
    assert breaker.begin(ejection_s_min)
    assert breaker.fail_request(ejection_s_min, ejection_s_min, is_probe=True)
    assert breaker.retry_after_s(ejection_s_min) == 2 * ejection_s_min
