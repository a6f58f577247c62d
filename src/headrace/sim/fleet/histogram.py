"""Percentiles of millions of times in a few kilobytes: logarithmic buckets, weights allowed.

A value is known to 1% of itself, which is finer than any model here.
"""

import math
from typing import Protocol

growth = 1.01
value_s_min = 1e-6
log_growth = math.log(growth)
bucket_min = math.ceil(math.log(value_s_min) / log_growth)


class WeightedTimes(Protocol):
    """What is asked of a histogram, in Python or C++."""

    def add(self, value_s: float, weight: float = ...) -> None:
        """Count a value, as if it came `weight` times."""
        ...

    @property
    def mean(self) -> float:
        """The mean, exactly; 0 of nothing."""
        ...

    def percentile(self, percent: float) -> float:
        """The value that `percent` of the weight does not exceed, to 1%; 0 of nothing."""
        ...


class Histogram:
    """Weights by logarithm of the value."""

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self._weight = 0.0
        self._sum = 0.0
        self._max = 0.0

    def add(self, value_s: float, weight: float = 1.0) -> None:
        """Count a value, as if it came `weight` times."""
        bucket = math.ceil(math.log(value_s) / log_growth) if value_s > value_s_min else bucket_min
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight
        self._weight += weight
        self._sum += value_s * weight
        self._max = max(self._max, value_s)

    @property
    def weight(self) -> float:
        """How much was counted."""
        return self._weight

    @property
    def mean(self) -> float:
        """The mean, exactly; 0 of nothing."""
        return self._sum / self._weight if self._weight else 0.0

    def percentile(self, percent: float) -> float:
        """The value that `percent` of the weight does not exceed, to 1%; 0 of nothing."""
        left = self._weight * percent / 100
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(self._max, math.exp(bucket * log_growth))
        return self._max
