"""Rates and percentiles of a level, as they are written to JSON and to the table."""

from collections.abc import Sequence

import msgspec

from headrace.cli.loadgen.client import Sample
from headrace.cli.loadgen.runner import LevelResult

errors_shown_max = 10


class Distribution(msgspec.Struct, frozen=True):
    """Milliseconds; percentiles are observed values (nearest rank)."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One level. Token counts and rates come from the server's usage, never from chunks."""

    concurrency: int
    request_rate_per_s: float | None  # None: closed loop
    requests: int
    completed: int
    failed: int
    errors: dict[str, int]
    without_usage: int  # completed requests whose tokens are unknown, and not counted below
    duration_s: float
    requests_per_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: Distribution | None  # start to first text
    itl_ms: Distribution | None  # (last text - first text) / (tokens - 1), of each request
    gap_ms: Distribution | None  # between reads with text, whatever their number of tokens
    latency_ms: Distribution | None  # start to end
    client_cpu_share: float  # of one core; near 1, the client is the limit


def summarize(result: LevelResult) -> LevelSummary:
    """Add up a level."""
    good = [sample for sample in result.samples if sample.error is None]
    usages = [sample.usage for sample in good if sample.usage is not None]
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    duration_s = max(result.end_s - result.start_s, 1e-9)
    return LevelSummary(
        concurrency=result.level.concurrency,
        request_rate_per_s=result.level.rate_per_s,
        requests=len(result.samples),
        completed=len(good),
        failed=len(result.samples) - len(good),
        errors=dict(result.errors.most_common(errors_shown_max)),
        without_usage=len(good) - len(usages),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        completion_tokens=completion_tokens,
        output_tokens_per_s=completion_tokens / duration_s,
        total_tokens_per_s=(prompt_tokens + completion_tokens) / duration_s,
        ttft_ms=distribution(
            [s.first_text_s - s.start_s for s in good if s.first_text_s is not None]
        ),
        itl_ms=distribution([itl for s in good if (itl := inter_token_s(s)) is not None]),
        gap_ms=distribution([gap for sample in good for gap in sample.gaps_s]),
        latency_ms=distribution([sample.end_s - sample.start_s for sample in good]),
        client_cpu_share=result.client_cpu_s / duration_s,
    )


def inter_token_s(sample: Sample) -> float | None:
    """The mean time between tokens of an answer of two tokens or more, by the server's count."""
    if sample.usage is None or sample.usage.completion_tokens < 2:
        return None
    if sample.first_text_s is None or sample.last_text_s is None:
        return None
    return (sample.last_text_s - sample.first_text_s) / (sample.usage.completion_tokens - 1)


def distribution(values_s: Sequence[float]) -> Distribution | None:
    """Percentiles of times in seconds, as milliseconds; None without values."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    return Distribution(
        mean=sum(ordered) / len(ordered) * 1e3,
        p50=percentile(ordered, 50) * 1e3,
        p90=percentile(ordered, 90) * 1e3,
        p99=percentile(ordered, 99) * 1e3,
        max=ordered[-1] * 1e3,
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of values in ascending order."""
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, rank - 1)]
