import random
from collections.abc import Callable

import pytest

from headrace.sim.fleet.histogram import WeightedTimes
from headrace.sim.fleet.machinery import compiled, plain

NewTimes = Callable[[], WeightedTimes]


@pytest.fixture(params=[plain, compiled], ids=["plain", "compiled"])
def new_times(request: pytest.FixtureRequest) -> NewTimes:
    made: NewTimes = request.param.new_gaps
    return made


def test_percentiles_are_within_one_percent(new_times: NewTimes) -> None:
    histogram = new_times()
    for value in range(1, 10_001):
        histogram.add(value / 1000)
    assert histogram.percentile(50) == pytest.approx(5.0, rel=0.011)
    assert histogram.percentile(99) == pytest.approx(9.9, rel=0.011)
    assert histogram.percentile(100) == 10.0
    assert histogram.mean == pytest.approx(5.0005)


def test_a_weight_counts_like_so_many_values(new_times: NewTimes) -> None:
    histogram = new_times()
    histogram.add(1.0, 90)
    histogram.add(10.0, 10)
    assert histogram.percentile(89) == pytest.approx(1.0, rel=0.011)
    assert histogram.percentile(95) == pytest.approx(10.0, rel=0.011)


def test_nothing_counted_is_zero(new_times: NewTimes) -> None:
    assert new_times().percentile(99) == new_times().mean == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_both_histograms_are_equal_to_the_bit(seed: int) -> None:
    rng = random.Random(seed)
    pair = (plain.new_gaps(), compiled.new_gaps())
    for _ in range(2000):
        value_s, weight = rng.lognormvariate(-5, 6), rng.randrange(1, 500)
        for times in pair:
            times.add(value_s, weight)
    one, other = ([t.mean, *map(t.percentile, range(101))] for t in pair)
    assert one == other
