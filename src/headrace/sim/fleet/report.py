"""What a run is judged by: latencies, goodput, output rate, imbalance, failures.

The same scenario, policy and seed give the same bytes.
"""

from array import array
from collections.abc import Sequence

import msgspec

from headrace.sim.fleet.histogram import WeightedTimes
from headrace.sim.fleet.request import Outcome, SimRequest, finished
from headrace.sim.fleet.scenario import Objective
from headrace.spec.priority import Priority

digits = 6
batch = Priority.BATCH


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    scenario: str
    policy: str
    seed: int
    simulated_s: float
    events: int
    requests: int
    finished: int
    failed: int
    refused: int
    retries: int
    waited: int  # in the gateway's queue
    ttft_s: Latency  # of those that somebody waits for: not of the class batch
    itl_s: Latency  # time between tokens, weighted by tokens
    e2e_s: Latency  # of the same
    output_tokens_per_s: float
    goodput_per_s: float  # requests that met the objective
    objective_share: float  # of all requests that somebody waits for
    cached_share: float  # of prompt tokens
    imbalance: float  # the busiest replica's tokens over the mean, within its deployment's mean
    spent_usd: float
    device_hours: float  # of replicas, from launch until they were gone, up to the last arrival
    turns_per_hour: float  # from more replicas to fewer and back, of a deployment that is scaled


class Recorder:
    """Takes requests as they end."""

    def __init__(self, objective: Objective, gaps: WeightedTimes) -> None:
        self._objective = objective
        self.ttft_s = array("d")
        self.e2e_s = array("d")
        self.gaps = gaps
        self.counts = dict.fromkeys(Outcome, 0)
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.awaited_count = 0  # of every class but batch, which has no objective
        self.good_count = 0  # of these
        self.last_end_s = 0.0

    def take(self, request: SimRequest) -> None:
        """A request ended."""
        outcome = request.outcome
        assert outcome is not None
        is_awaited = request.priority is not batch
        self.counts[outcome] += 1
        self.awaited_count += is_awaited
        if outcome is not finished:
            return
        self.output_tokens += request.output_tokens
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens
        self.last_end_s = request.end_s
        if not is_awaited:
            return
        ttft_s = request.first_token_s - request.arrival_s
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(request.end_s - request.arrival_s)
        tpot_s = (request.end_s - request.first_token_s) / request.output_tokens
        if ttft_s <= self._objective.ttft_s and tpot_s <= self._objective.tpot_s:
            self.good_count += 1

    def good_share(self) -> float:
        """Of the requests that somebody waits for, those that met the objective."""
        return self.good_count / self.awaited_count if self.awaited_count else 1.0


def imbalance(tokens: Sequence[int]) -> float:
    """The busiest replica's tokens over the mean, of the tokens of each."""
    total = sum(tokens)
    return max(tokens) * len(tokens) / total if total else 1.0


def latency(values: "array[float]") -> Latency:
    """Exact percentiles."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Latency(mean=0.0, p50=0.0, p90=0.0, p99=0.0)

    def percentile(percent: int) -> float:
        return round(ordered[min(count - 1, count * percent // 100)], digits)

    return Latency(
        mean=round(sum(ordered) / count, digits),
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
    )


def histogram_latency(histogram: WeightedTimes) -> Latency:
    """Percentiles to 1%."""
    return Latency(
        mean=round(histogram.mean, digits),
        p50=round(histogram.percentile(50), digits),
        p90=round(histogram.percentile(90), digits),
        p99=round(histogram.percentile(99), digits),
    )
