"""What a gateway counts, as plain numbers; the Prometheus text is made when somebody asks."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.gateway.goodput import is_judged
from headrace.gateway.ledger_lag import WatchedPoster
from headrace.gateway.waiting_room import WaitingRoom
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.observability import gateway_metrics as declared
from headrace.observability.metrics import Histogram, MetricDeclaration, Value, render
from headrace.router.endpoint import Endpoint
from headrace.router.picker import PredictionRecord
from headrace.spec.priority import Priority


@dataclass(slots=True)
class GatewayCounters:
    """The counts of one gateway process; only its event loop changes them."""

    answers: Counter[int] = field(default_factory=Counter)  # by status
    settlements: Counter[Outcome] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    counted_settlements: int = 0
    undurable_settlements: int = 0
    unkept_responses: int = 0  # answered, and not stored
    retries: int = 0
    fallbacks: int = 0
    ejections: int = 0
    hedges: Counter[str] = field(default_factory=Counter)  # by which attempt answered
    hedge_lost_tokens: int = 0
    retried_tokens: int = 0
    splits: Counter[str] = field(default_factory=Counter)  # of first legs, by result
    drains: Counter[str] = field(default_factory=Counter)  # of callers who left, by result
    model_requests: Counter[str] = field(default_factory=Counter)  # by logical model
    model_good_requests: Counter[str] = field(default_factory=Counter)
    duration_s: Histogram = field(default_factory=Histogram)
    first_output_s: Histogram = field(default_factory=Histogram)

    def settled(self, outcome: Outcome, usage: TokenUsage, source: UsageSource) -> None:
        """Count one settlement."""
        self.settlements[outcome] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens
        if source in (UsageSource.COUNTED, UsageSource.UNMETERED):
            self.counted_settlements += 1

    def judged(self, model_name: str, outcome: Outcome, good: bool) -> None:
        """Count one ended request for or against its model."""
        if is_judged(outcome):
            self.model_requests[model_name] += 1
            self.model_good_requests[model_name] += good


@dataclass(frozen=True, slots=True)
class GatewayGauges:
    """What is true of a gateway now."""

    running_requests: int
    room: WaitingRoom
    predictions: PredictionRecord
    endpoints: Iterable[Endpoint]
    snapshot_age_s: float
    journal_healthy: bool
    limiter_degraded: bool
    dropped_log_lines: int
    lag: WatchedPoster
    loop_failures: Mapping[str, float]  # so far, by loop
    journal_bytes: int
    certificate_expiry_s: float | None  # None: no TLS
    model_names: Iterable[str]  # logical models that there are; no others are told of
    now_s: float


def metrics_text(
    counters: GatewayCounters, gauges: GatewayGauges, *, with_exemplars: bool = False
) -> bytes:
    """The Prometheus text of a gateway, or OpenMetrics', which has exemplars."""
    values: list[tuple[MetricDeclaration, Value]] = [
        (declared.requests_total, {str(k): float(v) for k, v in counters.answers.items()}),
        (
            declared.settlements_total,
            {outcome.value: float(counters.settlements[outcome]) for outcome in Outcome},
        ),
        (
            declared.tokens_total,
            {
                "prompt": counters.prompt_tokens,
                "cached": counters.cached_tokens,
                "completion": counters.completion_tokens,
            },
        ),
        (declared.counted_settlements_total, counters.counted_settlements),
        (declared.undurable_settlements_total, counters.undurable_settlements),
        (declared.unkept_responses_total, counters.unkept_responses),
        (declared.retries_total, counters.retries),
        (declared.fallbacks_total, counters.fallbacks),
        (declared.ejections_total, counters.ejections),
        (
            declared.hedges_total,
            {result: float(counters.hedges[result]) for result in ("won", "lost", "none")},
        ),
        (declared.hedge_lost_tokens_total, counters.hedge_lost_tokens),
        (declared.retried_tokens_total, counters.retried_tokens),
        (
            declared.splits_total,
            {result: float(counters.splits[result]) for result in ("done", "failed")},
        ),
        (
            declared.drains_total,
            {result: float(counters.drains[result]) for result in ("done", "cut", "refused")},
        ),
        (
            declared.predicted_tokens_total,
            {
                "predicted": gauges.predictions.predicted_tokens,
                "cached": gauges.predictions.cached_tokens,
                "missed": gauges.predictions.missed_tokens,
                "surprise": gauges.predictions.surprise_tokens,
            },
        ),
        (declared.model_requests_total, by_model(counters.model_requests, gauges.model_names)),
        (
            declared.model_good_requests_total,
            by_model(counters.model_good_requests, gauges.model_names),
        ),
        (declared.unposted_records, gauges.lag.unposted_records()),
        (declared.oldest_unposted_seconds, gauges.lag.oldest_unposted_s()),
        (declared.journal_bytes, gauges.journal_bytes),
        (
            declared.certificate_expiry_seconds,
            {} if gauges.certificate_expiry_s is None else gauges.certificate_expiry_s,
        ),
        (declared.running_requests, gauges.running_requests),
        (declared.waiting_requests, gauges.room.waiting_count()),
        (
            declared.saturated_refusals_total,
            {priority.word: float(gauges.room.refused[priority.word]) for priority in Priority},
        ),
        (declared.queue_wait_seconds, gauges.room.wait_s),
        (declared.endpoints, endpoint_states(gauges.endpoints, gauges.now_s)),
        (declared.snapshot_age_seconds, gauges.snapshot_age_s),
        (declared.journal_healthy, float(gauges.journal_healthy)),
        (declared.limiter_degraded, float(gauges.limiter_degraded)),
        (declared.dropped_log_lines_total, gauges.dropped_log_lines),
        (declared.loop_failures_total, gauges.loop_failures),
        (declared.request_duration_seconds, counters.duration_s),
        (declared.first_output_seconds, counters.first_output_s),
    ]
    return render(values, "", with_exemplars=with_exemplars)


def by_model(counts: Counter[str], model_names: Iterable[str]) -> dict[str, float]:
    """The counts of the models that there are; a model without requests has 0."""
    return {name: float(counts[name]) for name in model_names}


def endpoint_states(endpoints: Iterable[Endpoint], now_s: float) -> dict[str, float]:
    """How many endpoints are in each state."""
    states = {"available": 0.0, "ejected": 0.0, "inactive": 0.0}
    for endpoint in endpoints:
        if endpoint.is_available(now_s):
            states["available"] += 1
        else:
            states["ejected" if endpoint.spec.accepts_requests else "inactive"] += 1
    return states
