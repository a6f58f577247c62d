"""Goodput by model: each window says what ended in it, and over how long it was looked at."""

import pytest

from headrace.control.goodput_history import GoodputHistory, looks_max
from headrace.control.traffic import TrafficBook
from headrace.sim.clock import ManualClock
from headrace.spec.signals import GatewaySignals, ModelSignals


def hear(book: TrafficBook, judged: int, good: int) -> None:
    model = ModelSignals(model="m", judged_requests_total=judged, good_requests_total=good)
    book.hear(GatewaySignals(gateway_id="g", models=(model,)), 0.0)


def test_a_window_counts_what_ended_in_it_and_burns_by_the_target() -> None:
    book, clock = TrafficBook(), ManualClock()
    history = GoodputHistory(book, clock)
    hear(book, 100, 100)
    history.take(["m"])
    clock.advance(600)
    history.take(["m"])
    hear(book, 200, 195)
    clock.advance(60)
    short, long, _ = history.of("m")
    assert (short.requests, short.good_requests, short.observed_s) == (100, 95, 60)
    assert short.good_share == 0.95
    assert short.burn_rate == pytest.approx(5)
    assert (long.requests, long.observed_s) == (100, 660)


def test_nothing_to_judge_is_neither_good_nor_bad() -> None:
    history = GoodputHistory(TrafficBook(), ManualClock())
    for window in history.of("m"):
        assert (window.good_share, window.burn_rate) == (None, None)


def test_looks_are_a_minute_apart_and_bounded() -> None:
    book, clock = TrafficBook(), ManualClock()
    history = GoodputHistory(book, clock)
    for _ in range(looks_max * 2 + 20):
        history.take(["m"])
        clock.advance(30)
    longest = history.of("m")[-1]
    assert longest.observed_s <= longest.window_s
    assert longest.observed_s > longest.window_s - 120
