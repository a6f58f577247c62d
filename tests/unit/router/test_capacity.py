"""An endpoint's limit follows what stays waiting inside it, and no burst."""

import math
import random

import pytest

from headrace.router.capacity import (
    Capacity,
    limit_max,
    limit_start,
    report_gap_s_max,
    standing_s,
)


def report(
    capacity: Capacity,
    *,
    running: int,
    waiting: int,
    in_flight: int,
    queue_s: float = standing_s,
    now_s: float = 0.0,
) -> None:
    """One report; what waits is a queue that stays unless the test says otherwise."""
    capacity.observe(
        running=running, waiting=waiting, in_flight=in_flight, queue_s=queue_s, now_s=now_s
    )


def test_an_engine_with_room_gets_twice_as_many_each_time_it_is_full() -> None:
    capacity = Capacity()
    for _ in range(3):
        in_flight = capacity.requests_max
        report(capacity, running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 8 * limit_start


def test_an_engine_that_is_not_full_changes_nothing() -> None:
    capacity = Capacity()
    report(capacity, running=3, waiting=0, in_flight=3)
    assert capacity.requests_max == limit_start


def test_what_waits_inside_is_taken_back_but_for_a_few() -> None:
    capacity = Capacity()
    report(capacity, running=8, waiting=24, in_flight=32)
    assert capacity.requests_max == 8 + 1


def test_only_the_own_share_is_cut_where_several_gateways_load_one_engine() -> None:
    capacity = Capacity()
    report(capacity, running=16, waiting=6, in_flight=11)
    assert capacity.requests_max == 11 - (6 - 2)


def test_one_request_is_always_allowed() -> None:
    capacity = Capacity()
    report(capacity, running=1, waiting=500, in_flight=2)
    assert capacity.requests_max == 1


def test_after_a_cut_the_limit_grows_slowly() -> None:
    capacity = Capacity()
    report(capacity, running=16, waiting=16, in_flight=32)
    assert capacity.requests_max == 18
    report(capacity, running=18, waiting=0, in_flight=18)
    assert capacity.requests_max == 18 + 3


def test_a_burst_that_will_be_gone_in_a_moment_cuts_nothing() -> None:
    capacity = Capacity()
    for second in range(20):
        report(capacity, running=8, waiting=24, in_flight=32, queue_s=0.2, now_s=second)
        report(capacity, running=30, waiting=0, in_flight=30, queue_s=0.0, now_s=second + 0.5)
    assert capacity.requests_max == limit_start


def test_what_stays_is_cut_once_it_was_there_long_enough_by_the_least_of_it() -> None:
    capacity = Capacity()
    for now_s, waiting in [(0.0, 20), (0.1, 7), (0.2, 12), (0.3, 20)]:
        report(capacity, running=8, waiting=waiting, in_flight=30, queue_s=0.0, now_s=now_s)
        assert capacity.requests_max == limit_start
    report(capacity, running=8, waiting=20, in_flight=30, queue_s=0.0, now_s=0.5)
    assert capacity.requests_max == 30 - (7 - 1)


def test_a_cut_is_given_time_to_work_before_the_next() -> None:
    capacity = Capacity()
    for now_s in (0.0, 0.5):
        report(capacity, running=8, waiting=9, in_flight=30, queue_s=0.0, now_s=now_s)
    assert capacity.requests_max == 22
    report(capacity, running=8, waiting=9, in_flight=17, queue_s=0.0, now_s=0.6)
    assert capacity.requests_max == 22
    report(capacity, running=8, waiting=9, in_flight=17, queue_s=0.0, now_s=1.0)
    assert capacity.requests_max == 17 - 8


def test_two_bursts_with_nothing_told_between_are_no_queue_that_stays() -> None:
    capacity = Capacity()
    for number in range(5):
        now_s = number * (report_gap_s_max + 0.1)
        report(capacity, running=8, waiting=9, in_flight=30, queue_s=0.0, now_s=now_s)
    assert capacity.requests_max == limit_start


@pytest.mark.parametrize("queue_s", [0.0, standing_s])
def test_a_steady_engine_settles_with_its_places_full_and_few_waiting(queue_s: float) -> None:
    capacity, places = Capacity(), 10
    for number in range(200):
        in_flight = capacity.requests_max  # demand without end
        running = min(places, in_flight)
        waiting = in_flight - running
        report(
            capacity,
            running=running,
            waiting=waiting,
            in_flight=in_flight,
            queue_s=queue_s,
            now_s=number * 0.1,
        )
    assert places <= capacity.requests_max <= places + 3


@pytest.mark.parametrize("seed", range(20))
def test_bursts_and_queues_are_told_apart_as_a_plain_list_of_reports_tells_them(
    seed: int,
) -> None:
    """A queue stays if no report for so long was without it; the slow model keeps them all."""
    rng, capacity, now_s = random.Random(seed), Capacity(), 0.0
    streak: list[tuple[float, int]] = []
    for _ in range(300):
        now_s += rng.choice([0.1, 0.1, 0.5, 1.5])
        running, waiting = rng.randrange(60), rng.choice([0, 1, 3, 9, 30])
        queue_s = rng.choice([0.0, 0.2, 0.2, 0.6])
        in_flight, before = running + waiting, capacity.requests_max
        report(
            capacity,
            running=running,
            waiting=waiting,
            in_flight=in_flight,
            queue_s=queue_s,
            now_s=now_s,
        )
        too_many = waiting - max(1, running // 8)
        if too_many <= 0:
            streak = []
            assert capacity.requests_max >= before
            continue
        if streak and now_s - streak[-1][0] > report_gap_s_max:
            streak = []
        streak.append((now_s, too_many))
        stood = now_s - streak[0][0] >= standing_s
        bound = math.inf
        if queue_s >= standing_s:
            bound = in_flight - too_many
        elif stood:
            bound = in_flight - min(count for _, count in streak)
        assert capacity.requests_max == min(before, max(1, bound))
        if stood:
            streak = [(now_s, too_many)]


def test_an_engine_without_reports_is_not_limited() -> None:
    capacity = Capacity()
    capacity.forget()
    assert capacity.requests_max == limit_max


def test_work_that_can_wait_leaves_an_eighth_and_one_place_at_least() -> None:
    capacity = Capacity()
    assert capacity.has_spare(limit_start - limit_start // 8 - 1)
    assert not capacity.has_spare(limit_start - limit_start // 8)
    capacity.requests_max = 3
    assert capacity.has_spare(1)
    assert not capacity.has_spare(2)
    capacity.requests_max = 1
    assert capacity.has_spare(0)  # or it would never run


def test_work_that_was_held_back_counts_as_full_once() -> None:
    capacity = Capacity()
    in_flight = limit_start - limit_start // 8
    assert not capacity.has_spare(in_flight)
    report(capacity, running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 2 * limit_start
    report(capacity, running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 2 * limit_start
