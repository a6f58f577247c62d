import pytest

from headrace.engine.step_time import StepTime, ridge_rows


def test_the_two_parts_are_learnt_from_steps_of_different_sizes() -> None:
    time = StepTime()
    for rows in [1, 128, 64, 3, 90] * 20:
        time.record(rows, 0.010 + rows * 0.0005)
    assert time.base_s == pytest.approx(0.010, rel=0.02)
    assert time.row_s == pytest.approx(0.0005, rel=0.02)
    assert time.rows_within(0.050, 512) == pytest.approx(80, abs=1)


def test_steps_of_one_size_are_split_at_the_ridge() -> None:
    time = StepTime()
    for _ in range(50):
        time.record(1, 0.017)
    assert time.base_s == pytest.approx(ridge_rows * time.row_s)


def test_a_machine_that_slows_down_is_followed() -> None:
    time = StepTime()
    for rows in [1, 128] * 100:
        time.record(rows, 0.010 + rows * 0.0005)
    for rows in [1, 128] * 150:
        time.record(rows, 0.020 + rows * 0.0010)
    assert time.row_s == pytest.approx(0.0010, rel=0.05)


def test_nothing_known_limits_nothing() -> None:
    time = StepTime()
    assert time.rows_within(0.001, 128) == 128
    assert not time.is_known
    assert (time.base_s, time.row_s) == (0.0, 0.0)


def test_a_target_below_the_base_leaves_no_rows() -> None:
    time = StepTime()
    for rows in [1, 128] * 20:
        time.record(rows, 0.010 + rows * 0.0005)
    assert time.rows_within(0.005, 128) == 0
