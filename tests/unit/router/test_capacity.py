"""An endpoint's limit follows what waits inside it."""

from headrace.router.capacity import Capacity, limit_max, limit_start


def test_an_engine_with_room_gets_twice_as_many_each_time_it_is_full() -> None:
    capacity = Capacity()
    for _ in range(3):
        in_flight = capacity.requests_max
        capacity.observe(running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 8 * limit_start


def test_an_engine_that_is_not_full_changes_nothing() -> None:
    capacity = Capacity()
    capacity.observe(running=3, waiting=0, in_flight=3)
    assert capacity.requests_max == limit_start


def test_what_waits_inside_is_taken_back_but_for_a_few() -> None:
    capacity = Capacity()
    capacity.observe(running=8, waiting=24, in_flight=32)
    assert capacity.requests_max == 8 + 1


def test_only_the_own_share_is_cut_where_several_gateways_load_one_engine() -> None:
    capacity = Capacity()
    capacity.observe(running=16, waiting=6, in_flight=11)
    assert capacity.requests_max == 11 - (6 - 2)


def test_one_request_is_always_allowed() -> None:
    capacity = Capacity()
    capacity.observe(running=1, waiting=500, in_flight=2)
    assert capacity.requests_max == 1


def test_after_a_cut_the_limit_grows_slowly() -> None:
    capacity = Capacity()
    capacity.observe(running=16, waiting=16, in_flight=32)
    assert capacity.requests_max == 18
    capacity.observe(running=18, waiting=0, in_flight=18)
    assert capacity.requests_max == 18 + 3


def test_a_steady_engine_settles_with_its_places_full_and_few_waiting() -> None:
    capacity, places = Capacity(), 10
    for _ in range(50):
        in_flight = capacity.requests_max  # demand without end
        running = min(places, in_flight)
        capacity.observe(running=running, waiting=in_flight - running, in_flight=in_flight)
    assert places <= capacity.requests_max <= places + 3


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
    capacity.observe(running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 2 * limit_start
    capacity.observe(running=in_flight, waiting=0, in_flight=in_flight)
    assert capacity.requests_max == 2 * limit_start
