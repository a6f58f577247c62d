"""Metrics as declarations and plain values; the Prometheus text is made when somebody asks.

A declaration is made once, in a module of this package, and the reference page is generated from
it. Counting on the hot path is an addition to an integer, never a look-up by name or label.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

content_type = b"text/plain; version=0.0.4; charset=utf-8"
openmetrics_content_type = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

latency_buckets_s = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
# The library's own function has no types.
generate_openmetrics: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest

token_buckets = tuple(float(4**power) for power in range(11))  # as the gen_ai conventions say
gen_ai_provider = "headrace"
gen_ai_operation = "chat"  # what nearly all of it is; the engine does not tell them apart


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
    gen_ai: str | None = None  # and under OpenTelemetry's, with its labels
    gen_ai_label: str | None = None  # what `label` is called there
    info_labels: tuple[str, ...] = ()  # of a metric whose labels are what it says


Bucket = tuple[str, float] | tuple[str, float, Exemplar]


class Histogram:
    """Counts of observations by upper bound, and in each the trace of the last one that had one."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...] = latency_buckets_s) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is what exceeds every bound
        self.sum = 0.0
        self.exemplars: dict[int, tuple[str, float]] = {}  # by position, at most one a bucket

    def observe(self, value: float, trace_id: str = "") -> None:
        """Count one observation, of a trace if it was traced."""
        position = bisect_left(self.bounds, value)
        self.counts[position] += 1
        self.sum += value
        if trace_id:
            self.exemplars[position] = (trace_id, value)

    def cumulative(self) -> Iterator[Bucket]:
        """Prometheus' buckets: each counts everything up to its bound."""
        total = 0
        bounds = (*map(str, self.bounds), "+Inf")
        for position, (bound, count) in enumerate(zip(bounds, self.counts, strict=True)):
            total += count
            if position in self.exemplars:
                trace_id, value = self.exemplars[position]
                yield bound, total, Exemplar({"trace_id": trace_id}, value)
            else:
                yield bound, total


@dataclass(frozen=True, slots=True)
class Info:
    """One sample that is told by its labels."""

    labels: tuple[str, ...]  # as the declaration's `info_labels`
    value: float


# A mapping has one value for each label value.
Value = float | Histogram | Info | Mapping[str, float] | Mapping[str, Histogram]


def render(
    values: Iterable[tuple[MetricDeclaration, Value]],
    model_name: str,
    *,
    with_exemplars: bool = False,
) -> bytes:
    """The Prometheus text of these values; aliases carry a `model_name` label, as vLLM's do.

    `with_exemplars` writes OpenMetrics, the format that has them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(list(values), model_name))
    return generate_openmetrics(registry) if with_exemplars else generate_latest(registry)


def reads_openmetrics(accept: str | None) -> bool:
    """Whether a scraper's Accept header names the format with exemplars."""
    return "application/openmetrics-text" in (accept or "")


class _Snapshot(Collector):
    def __init__(self, values: list[tuple[MetricDeclaration, Value]], model_name: str) -> None:
        self._values = values
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Each metric under its own name, then the aliases, then OpenTelemetry's names."""
        for declaration, value in self._values:
            yield _family(declaration, declaration.name, value, {})
        for declaration, value in self._values:
            if declaration.alias is not None:
                labels = {"model_name": self._model_name}
                yield _family(declaration, declaration.alias, value, labels)
        gen_ai_labels = {
            "gen_ai_operation_name": gen_ai_operation,
            "gen_ai_provider_name": gen_ai_provider,
            "gen_ai_request_model": self._model_name,
        }
        for declaration, value in self._values:
            if declaration.gen_ai is not None:
                named = replace(declaration, label=declaration.gen_ai_label)
                yield _family(named, declaration.gen_ai, value, gen_ai_labels)


def _family(
    declaration: MetricDeclaration, name: str, value: Value, labels: dict[str, str]
) -> Metric:
    label_names = [*labels, *([declaration.label] if declaration.label else [])]
    if isinstance(value, Info):
        info = GaugeMetricFamily(name, declaration.doc, labels=[*labels, *declaration.info_labels])
        info.add_metric([*labels.values(), *value.labels], value.value)
        return info
    if declaration.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, declaration.doc, labels=label_names)
        for label_value, one in _by_label(value):
            assert isinstance(one, Histogram), f"{name} is a histogram"
            own = [label_value] if declaration.label else []
            histogram.add_metric([*labels.values(), *own], list(one.cumulative()), one.sum)
        return histogram
    family = (
        CounterMetricFamily(name, declaration.doc, labels=label_names)
        if declaration.kind is MetricKind.COUNTER
        else GaugeMetricFamily(name, declaration.doc, labels=label_names)
    )
    for label_value, number in _by_label(value):
        assert not isinstance(number, Histogram), f"{name} is a number"
        own = [label_value] if declaration.label else []
        family.add_metric([*labels.values(), *own], number)
    return family


def _by_label(value: Value) -> Iterable[tuple[str, float | Histogram]]:
    """The values by label value; one alone has none."""
    assert not isinstance(value, Info), "it has no value by label"
    return value.items() if isinstance(value, Mapping) else [("", value)]
