"""What steps take by their rows: bound by memory first, by arithmetic then."""

from collections.abc import Callable, Iterable
from random import Random

import pytest

from headrace.engine.step_time import StepTime, ridge_rows


def line(rows: int) -> float:
    return 0.010 + rows * 0.0005


def roof(rows: int) -> float:
    """Memory bounds up to 16 rows, arithmetic more."""
    return max(0.032, 0.002 * rows)


def taught(step_s: Callable[[int], float], sizes: Iterable[int]) -> StepTime:
    time = StepTime()
    for rows in sizes:
        time.record(rows, step_s(rows))
    return time


def test_a_line_is_learnt_from_steps_of_different_sizes() -> None:
    time = taught(line, [1, 128, 64, 3, 90] * 20)
    for rows in (1, 2, 3, 60, 128):
        assert time.row_s(rows) == pytest.approx(0.0005, rel=0.02)
        assert time.step_s(rows) == pytest.approx(line(rows), rel=0.02)
    assert time.rows_within(0.050, 512) == pytest.approx(80, abs=1)


def test_a_row_costs_nothing_below_the_roof_and_its_arithmetic_above() -> None:
    time = taught(roof, [1, 4, 8, 16, 32, 64, 128] * 20)
    assert [time.row_s(rows) for rows in (1, 4, 8)] == pytest.approx([0, 0, 0])
    assert [time.row_s(rows) for rows in (16, 32, 100)] == pytest.approx([0.002] * 3)
    assert time.rows_within(0.100, 512) == pytest.approx(50, abs=1)
    assert time.rows_within(0.300, 512) == pytest.approx(150, abs=1)
    assert time.rows_within(0.020, 512) == 0


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_prompt_and_answers_of_one_number_never_take_a_row_for_too_cheap(rows: int) -> None:
    time = taught(roof, [128] + [rows] * 100)
    assert time.step_s(rows) == pytest.approx(roof(rows))
    assert roof(rows + 1) - roof(rows) <= time.row_s(rows) + 1e-9 <= 0.002 + 2e-9


def test_near_sizes_are_believed_once_they_have_said_enough() -> None:
    time = taught(roof, [128, 8] * 20)
    far_s = time.row_s(8)
    for _ in range(40):
        time.record(16, roof(16))
        time.record(8, roof(8))
    assert far_s > 0.0015
    assert time.row_s(8) == pytest.approx(0, abs=1e-6)


def test_a_near_size_that_differs_by_a_row_says_little() -> None:
    """Steps that vary by a tenth would tell nothing of a row between 8 and 9."""
    draw = Random(1)
    time = StepTime()
    for _ in range(60):
        for rows in (8, 9, 128):
            time.record(rows, 0.002 * rows * draw.uniform(0.9, 1.1))
    assert time.row_s(8) == pytest.approx(0.002, rel=0.2)


def test_steps_of_one_size_are_split_at_the_ridge() -> None:
    time = taught(lambda _: 0.017, [1] * 50)
    assert time.row_s(1) == pytest.approx(0.017 / (1 + ridge_rows))


def test_smaller_sizes_tell_where_no_larger_one_is_known() -> None:
    assert taught(line, [1, 8] * 9).row_s(8) == pytest.approx(0.0005)


def test_a_machine_that_slows_down_is_followed() -> None:
    time = taught(line, [1, 128] * 100)
    for rows in [1, 128] * 150:
        time.record(rows, 2 * line(rows))
    assert time.row_s(1) == pytest.approx(0.0010, rel=0.05)


def test_what_was_long_ago_gives_way_to_one_step_of_now() -> None:
    time = taught(line, [128] * 20 + [1] * 1000)
    time.record(128, 1.4 * line(128))
    assert time.step_s(128) == pytest.approx(1.4 * line(128), rel=0.02)


def test_a_step_that_was_disturbed_counts_as_far_as_is_plausible() -> None:
    time = taught(line, [8] * 50)
    time.record(8, 1000 * line(8))
    assert time.step_s(8) < 1.1 * line(8)


def test_nothing_known_limits_nothing() -> None:
    time = StepTime()
    assert time.rows_within(0.001, 128) == 128
    assert (time.step_s(8), time.row_s(8)) == (0.0, 0.0)


def test_a_target_below_the_base_leaves_no_rows() -> None:
    assert taught(line, [1, 128] * 20).rows_within(0.005, 128) == 0
