"""The aggregate engine against the real scheduler: the same arrivals, the same device."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.sim.fleet.aggregate_engine import AggregateEngine
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.exact_engine import ExactEngine
from headrace.sim.fleet.histogram import Histogram
from headrace.sim.fleet.randomness import stream

MakeAttempt = Callable[..., Attempt]


def times(
    engine_type: type[ExactEngine] | type[AggregateEngine],
    device: DeviceModel,
    attempts: list[Attempt],
    recorder_type: Any,
) -> dict[str, float]:
    """Means and percentiles of one run."""
    loop, gaps = EventLoop(), Histogram()
    told = recorder_type(loop)
    engine = engine_type(loop, device, told, gaps)
    for attempt in attempts:
        loop.at(attempt.request.arrival_s, engine.submit, attempt)
    loop.run()
    assert len(told.end_s) == len(attempts)
    waits = sorted(told.first_s[a.request.id] - a.request.arrival_s for a in attempts)
    return {
        "ttft_mean": sum(waits) / len(waits),
        "ttft_p90": waits[len(waits) * 9 // 10],
        "gap_mean": gaps.mean,
        "gap_p50": gaps.percentile(50),
        "makespan": max(told.end_s.values()),
        "cached": sum(a.cached_tokens for a in attempts) / len(attempts),
    }


def workload(
    attempt_of: MakeAttempt, *, rate_per_s: float, count: int, groups: int, shared: int
) -> list[Attempt]:
    rng = stream(3, "workload")
    now_s, attempts = 0.0, []
    for number in range(count):
        now_s += rng.expovariate(rate_per_s)
        prompt = 20 + int(rng.expovariate(1 / 300))
        output = 1 + int(rng.expovariate(1 / 80))
        segments = [(10_000 + number, prompt)]
        if groups:
            segments = [(rng.randrange(groups), shared), *segments]
        attempts.append(attempt_of(number, segments, output, now_s))
    return attempts


def both(
    device: DeviceModel, make: Callable[[], list[Attempt]], recorder_type: Any
) -> tuple[dict[str, float], dict[str, float]]:
    return (
        times(ExactEngine, device, make(), recorder_type),
        times(AggregateEngine, device, make(), recorder_type),
    )


@pytest.mark.parametrize("rate_per_s", [2.0, 8.0, 14.0])
def test_the_models_agree_on_unshared_traffic(
    rate_per_s: float, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    def make() -> list[Attempt]:
        return workload(attempt_of, rate_per_s=rate_per_s, count=400, groups=0, shared=0)

    exact, aggregate = both(device, make, recorder_type)
    assert aggregate["ttft_mean"] == pytest.approx(exact["ttft_mean"], rel=0.03)
    assert aggregate["gap_mean"] == pytest.approx(exact["gap_mean"], rel=0.01)
    assert aggregate["makespan"] == pytest.approx(exact["makespan"], rel=0.01)


def test_the_models_agree_on_shared_prefixes_that_fit_and_that_do_not(
    device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    for groups in (4, 20):

        def make(groups: int = groups) -> list[Attempt]:
            return workload(attempt_of, rate_per_s=6.0, count=400, groups=groups, shared=1000)

        exact, aggregate = both(device, make, recorder_type)
        assert aggregate["cached"] == pytest.approx(exact["cached"], rel=0.03)
        assert aggregate["ttft_mean"] == pytest.approx(exact["ttft_mean"], rel=0.05)
        assert aggregate["makespan"] == pytest.approx(exact["makespan"], rel=0.01)


def test_the_models_agree_when_the_pool_is_short(
    device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    small = msgspec.structs.replace(device, kv_tokens=4096)

    def make() -> list[Attempt]:
        return workload(attempt_of, rate_per_s=12.0, count=300, groups=0, shared=0)

    exact, aggregate = both(small, make, recorder_type)
    assert aggregate["ttft_mean"] == pytest.approx(exact["ttft_mean"], rel=0.10)
    assert aggregate["makespan"] == pytest.approx(exact["makespan"], rel=0.05)


def test_aborted_and_halted_requests_leave_nothing_in_the_aggregate_engine(
    device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    loop = EventLoop()
    told = recorder_type(loop)
    engine = AggregateEngine(loop, device, told, Histogram())
    attempts = workload(attempt_of, rate_per_s=20.0, count=200, groups=3, shared=500)
    rng = stream(5, "aborts")
    for attempt in attempts:
        loop.at(attempt.request.arrival_s, engine.submit, attempt)
        loop.at(attempt.request.arrival_s + rng.expovariate(1.0), engine.abort, attempt)
    loop.run()
    assert engine.load() == (0, 0)
    assert engine.cache.free_tokens == device.kv_tokens
    assert 0 < len(told.end_s) < len(attempts)


def test_a_halted_aggregate_engine_is_silent(
    device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    loop = EventLoop()
    told = recorder_type(loop)
    engine = AggregateEngine(loop, device, told, Histogram())
    engine.submit(attempt_of(1, [(5, 100)], 1000))
    loop.at(1.0, lambda _: engine.halt(), None)
    loop.run()
    assert told.end_s == {}


@pytest.mark.parametrize("seed", range(12))
def test_where_a_span_is_cut_changes_nothing(
    device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any, seed: int
) -> None:
    """Jumping over many steps tells the same as stopping after some of them, which cuts do."""

    def told(cuts: int) -> tuple[dict[int, float], dict[int, float]]:
        loop = EventLoop()
        told = recorder_type(loop)
        roomy = msgspec.structs.replace(device, kv_tokens=1 << 20)
        engine = AggregateEngine(loop, roomy, told, Histogram())
        rng, arrival_s = stream(seed, "requests"), 0.0
        for number in range(60):
            arrival_s += rng.expovariate(6.0)
            segments = [(rng.randrange(3), 400), (10_000 + number, 20 + rng.randrange(900))]
            attempt = attempt_of(number, segments, 1 + rng.randrange(120), arrival_s)
            loop.at(arrival_s, engine.submit, attempt)
            if rng.random() < 0.1:
                loop.at(arrival_s + rng.expovariate(1.0), engine.abort, attempt)
        cut_rng = stream(seed, "cuts")
        for _ in range(cuts):  # a device that becomes as fast as it was
            loop.at(cut_rng.random() * arrival_s, engine.slow_down, 1.0)
        loop.run()
        assert engine.load() == (0, 0)
        return told.first_s, told.end_s

    (first_s, end_s), (cut_first_s, cut_end_s) = told(cuts=0), told(cuts=400)
    assert len(end_s) > 40
    assert cut_first_s == pytest.approx(first_s, rel=1e-9, abs=1e-9)
    assert cut_end_s == pytest.approx(end_s, rel=1e-9, abs=1e-9)
