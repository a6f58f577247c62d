"""Rates and quantiles of the last minutes, from totals that only grow."""

from contextlib import closing
from pathlib import Path

from headrace.control.live_history import LiveHistory, Sample, earlier, point_of
from headrace.control.traffic import TrafficBook
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.signals import GatewaySignals, first_token_bounds_s

buckets = len(first_token_bounds_s) + 1


def sample(
    now_s: float, requests: int = 0, tokens: int = 0, fast: int = 0, slow: int = 0
) -> Sample:
    first_tokens = [0] * buckets
    first_tokens[first_token_bounds_s.index(0.1)] = fast
    first_tokens[first_token_bounds_s.index(5.0)] = slow
    return Sample(now_s, 1000.0 + now_s, requests, 0, tokens, tokens, tuple(first_tokens), 0, 0)


def test_rates_are_differences_over_time() -> None:
    point = point_of(sample(10, 30, 500, fast=3, slow=1), sample(0, 10, 100), sample(0))
    assert point.requests_per_s == 2.0
    assert point.tokens_per_s == 40.0
    assert point.good_share == 0.75
    assert point.first_token_p50_s is not None
    assert point.first_token_p50_s <= 0.1


def test_nothing_answered_has_no_latency() -> None:
    point = point_of(sample(4, 1), sample(2), sample(2))
    assert point.first_token_p50_s is None
    assert point.good_share is None


def test_totals_that_fell_are_no_negative_rate() -> None:
    assert point_of(sample(4, 1), sample(2, 9), sample(2)).requests_per_s == 0.0


def test_a_window_reaches_back_no_further_than_its_length() -> None:
    samples = [sample(t) for t in (0, 2, 4, 20)]
    assert earlier(samples, 2, 10.0) is samples[0]
    assert earlier(samples, 3, 10.0) is samples[2]


def test_a_success_is_known_from_before_this_process_began_and_grows_old(tmp_path: Path) -> None:
    clock, book = ManualClock(), TrafficBook()
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as database:
        live = LiveHistory(database.store, book, clock, 2)
        book.hear(GatewaySignals(gateway_id="idle"), clock.monotonic_s())
        assert live.success_age_s() is None
        for age_s, heard_age_s in ((30.0, 30.0), (50.0, 31.0), (2.0, 2.0), (None, 3.0)):
            book.hear(
                GatewaySignals(gateway_id="busy", success_age_s=age_s), clock.monotonic_s()
            )  # None: it restarted, and what it said before stays true
            assert live.success_age_s() == heard_age_s
            clock.advance(1.0)


def test_samples_begin_once_every_gateway_was_heard_of_or_after_a_while(tmp_path: Path) -> None:
    clock, book = ManualClock(), TrafficBook()
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as database:
        waits, heard = (LiveHistory(database.store, book, clock, count) for count in (2, 1))
        book.hear(GatewaySignals(gateway_id="one"), clock.monotonic_s())
        for _ in range(2):
            clock.advance(1.0)
            for live in (waits, heard):
                live.take()
        assert (len(waits.points()), len(heard.points())) == (0, 1)
        clock.advance(10.0)
        for _ in range(2):
            waits.take()
            clock.advance(1.0)
        assert len(waits.points()) == 1
