from collections.abc import Callable

import pytest

from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.machinery import compiled, plain

NewLoop = Callable[[float], Loop]


@pytest.fixture(params=[plain, compiled], ids=["plain", "compiled"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    made: NewLoop = request.param.new_loop
    return made


def test_calls_run_in_the_order_of_their_times_and_then_of_asking(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    seen: list[tuple[float, str]] = []

    def note(word: str) -> None:
        seen.append((loop.now_s, word))

    loop.at(2.0, note, "late")
    loop.at(1.0, note, "first")
    loop.at(1.0, note, "second")
    loop.run()
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]
    assert loop.events_total == 3


def test_a_call_may_ask_for_more_calls_at_the_same_time(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    seen: list[int] = []

    def count_down(number: int) -> None:
        seen.append(number)
        if number:
            loop.after(0.0, count_down, number - 1)

    loop.at(5.0, count_down, 3)
    loop.run()
    assert seen == [3, 2, 1, 0]
    assert loop.monotonic_s() == 5.0


def test_a_run_stops_at_its_time_and_goes_on_later(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    seen: list[int] = []
    for second in range(5):
        loop.at(float(second), seen.append, second)
    loop.run(until_s=2.0)
    assert seen == [0, 1, 2]
    assert loop.pending_count == 2
    loop.run(events_max=1)
    assert seen == [0, 1, 2, 3]


def test_the_past_is_refused(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    loop.at(1.0, print, None)
    loop.now_s = 1.0
    with pytest.raises(AssertionError, match="past"):
        loop.at(0.5, print, None)


def test_a_check_runs_after_every_event(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    checks: list[float] = []
    loop.check_after_each(lambda: checks.append(loop.now_s))
    loop.at(1.0, lambda _: None, None)
    loop.at(2.0, lambda _: None, None)
    loop.run()
    assert checks == [1.0, 2.0]


def test_calls_after_the_usual_delay_come_in_the_same_order_as_all_others(
    new_loop: NewLoop,
) -> None:
    orders = []
    for message_delay_s in (0.5, 99.0):  # all after 0.5 s are messages, or none is
        loop = new_loop(message_delay_s)
        seen: list[tuple[float, str]] = []

        def note(word: str, loop: Loop = loop, seen: list[tuple[float, str]] = seen) -> None:
            seen.append((loop.now_s, word))
            if len(seen) < 40:
                loop.after(0.5, note, f"{word}m")
                loop.at(loop.now_s + 0.5, note, f"{word}a")

        loop.at(1.0, note, "x")
        loop.after(0.5, note, "y")
        loop.run(until_s=1.0)
        assert [word for _, word in seen] == ["y", "x", "ym", "ya"]
        loop.run(events_max=10)
        loop.run()
        assert loop.pending_count == 0
        orders.append(seen)
    assert orders[0] == orders[1]


def test_the_last_call_of_a_moment_knows_that_it_is(new_loop: NewLoop) -> None:
    loop = new_loop(0.5)
    seen: list[bool] = []

    def ask(_: None) -> None:
        seen.append(loop.is_last_of_moment)

    loop.at(0.5, ask, None)
    loop.after(0.5, ask, None)
    loop.at(0.5, ask, None)
    loop.at(0.6, ask, None)
    loop.after(0.5, ask, None)
    loop.run()
    assert seen == [False, False, False, True, True]


def test_a_call_that_raises_ends_the_run_and_the_next_run_goes_on_behind_it(
    new_loop: NewLoop,
) -> None:
    loop = new_loop(0.0)
    seen: list[str] = []

    def fail(_: None) -> None:
        raise RuntimeError("broken")

    loop.at(1.0, fail, None)
    loop.at(2.0, seen.append, "after")
    with pytest.raises(RuntimeError, match="broken"):
        loop.run()
    assert (loop.now_s, loop.pending_count) == (1.0, 1)
    loop.run()
    assert seen == ["after"]


def test_the_wall_clock_can_be_set_and_virtual_time_goes_on(new_loop: NewLoop) -> None:
    loop = new_loop(0.0)
    before_s = loop.wall_s()
    loop.at(2.0, lambda _: None, None)
    loop.run()
    loop.set_wall(-10.0)
    assert loop.wall_s() - before_s == -8.0
    assert loop.monotonic_s() == 2.0
