"""Metrics as declarations and plain values; the Prometheus text is made when somebody asks.

A declaration is made once, in a module of this package, and the reference page is generated from
it. Counting on the hot path is an addition to an integer, never a look-up by name or label.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

content_type = b"text/plain; version=0.0.4; charset=utf-8"

latency_buckets_s = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class MetricKind(StrEnum):
    """What a metric's values mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """One metric: its name ends in its unit; a counter's name ends in `_total`."""

    name: str
    kind: MetricKind
    doc: str
    label: str | None = None  # a bounded set of values; never a tenant, a key or a request
    alias: str | None = None  # the same value under another engine's name


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = latency_buckets_s) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is what exceeds every bound
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Prometheus' buckets: each counts everything up to its bound."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


Value = float | Histogram | Mapping[str, float]  # a mapping has one value for each label value


def render(values: Iterable[tuple[MetricDeclaration, Value]], model_name: str) -> bytes:
    """The Prometheus text of these values; aliases carry a `model_name` label, as vLLM's do."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(list(values), model_name))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, values: list[tuple[MetricDeclaration, Value]], model_name: str) -> None:
        self._values = values
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Each metric under its own name, then the aliases."""
        for declaration, value in self._values:
            yield _family(declaration, declaration.name, value, {})
        for declaration, value in self._values:
            if declaration.alias is not None:
                labels = {"model_name": self._model_name}
                yield _family(declaration, declaration.alias, value, labels)


def _family(
    declaration: MetricDeclaration, name: str, value: Value, labels: dict[str, str]
) -> Metric:
    label_names = [*labels, *([declaration.label] if declaration.label else [])]
    if isinstance(value, Histogram):
        histogram = HistogramMetricFamily(name, declaration.doc, labels=label_names)
        histogram.add_metric(list(labels.values()), list(value.cumulative()), value.sum)
        return histogram
    family = (
        CounterMetricFamily(name, declaration.doc, labels=label_names)
        if declaration.kind is MetricKind.COUNTER
        else GaugeMetricFamily(name, declaration.doc, labels=label_names)
    )
    by_label = value if isinstance(value, Mapping) else {"": value}
    for label_value, number in by_label.items():
        own = [label_value] if declaration.label else []
        family.add_metric([*labels.values(), *own], number)
    return family
