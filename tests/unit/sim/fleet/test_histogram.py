import pytest

from headrace.sim.fleet.histogram import Histogram


def test_percentiles_are_within_one_percent() -> None:
    histogram = Histogram()
    for value in range(1, 10_001):
        histogram.add(value / 1000)
    assert histogram.percentile(50) == pytest.approx(5.0, rel=0.011)
    assert histogram.percentile(99) == pytest.approx(9.9, rel=0.011)
    assert histogram.percentile(100) == 10.0
    assert histogram.mean == pytest.approx(5.0005)


def test_a_weight_counts_like_so_many_values() -> None:
    histogram = Histogram()
    histogram.add(1.0, 90)
    histogram.add(10.0, 10)
    assert histogram.percentile(89) == pytest.approx(1.0, rel=0.011)
    assert histogram.percentile(95) == pytest.approx(10.0, rel=0.011)


def test_nothing_counted_is_zero() -> None:
    assert Histogram().percentile(99) == Histogram().mean == 0.0
