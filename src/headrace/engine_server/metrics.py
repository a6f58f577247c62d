"""The values behind /metrics: what this process timed, what requests used, what the engine says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.messages import Stats
from headrace.engine_server.usage_log import UsageLog
from headrace.observability import engine_metrics as names
from headrace.observability.metrics import Histogram, Info, MetricDeclaration, Value, render


@dataclass(slots=True)
class Timings:
    """What is measured where requests are answered."""

    first_token_s: Histogram = field(default_factory=Histogram)
    inter_token_s: Histogram = field(default_factory=Histogram)
    request_s: Histogram = field(default_factory=Histogram)
    disconnect_count: int = 0


async def metrics_text(
    engine: EngineClient,
    usage: UsageLog,
    timings: Timings,
    model_name: str,
    *,
    wall_s: float,
    planned_bytes: Mapping[str, int],
    with_exemplars: bool = False,
) -> bytes:
    """Everything in Prometheus' text format, or in OpenMetrics', which has exemplars."""
    stats = await engine.stats()
    values = [*_usage_values(engine, usage), (names.restarts_total, engine.restart_count)]
    values.append((names.loop_failures_total, engine.loop_failures))
    if stats is not None:  # what the engine does not say is left out: it is not zero
        values += _engine_values(engine, stats)
    values += _adapter_values(engine, wall_s)
    values += [
        (names.planned_memory_bytes, dict(planned_bytes)),
        (names.queue_seconds, usage.queue_s),
        (names.first_token_seconds, timings.first_token_s),
        (names.inter_token_seconds, timings.inter_token_s),
        (names.request_seconds, timings.request_s),
        (names.disconnects_total, timings.disconnect_count),
        (names.request_tokens, {"input": usage.input_tokens, "output": usage.output_tokens}),
    ]
    return render(values, model_name, with_exemplars=with_exemplars)


def _adapter_values(engine: EngineClient, wall_s: float) -> list[tuple[MetricDeclaration, Value]]:
    """What routers look at to send an adapter's requests where it is; nothing without adapters."""
    if not engine.config.adapters_max:
        return []
    counts = dict.fromkeys(engine.adapters, 0)
    running: set[str] = set()
    for stream in engine.streams:
        adapter = stream.submit.adapter
        if adapter is not None:
            counts[adapter] = counts.get(adapter, 0) + 1
            running |= {adapter} if stream.last is not None else set()
    waiting = sorted(name for name, count in counts.items() if count and name not in running)
    labels = (str(engine.config.adapters_max), ",".join(waiting), ",".join(sorted(running)))
    return [
        (names.adapters_loaded, len(engine.adapters)),
        (names.adapter_requests, counts),
        (names.adapters_info, Info(labels, wall_s)),
    ]


def _kernels_value(engine: EngineClient) -> list[tuple[MetricDeclaration, Value]]:
    ready = engine.ready
    if ready is None:
        return []
    return [(names.kernels_info, Info((ready.kernel_name, str(ready.activation_bits)), 1))]


def _engine_values(engine: EngineClient, stats: Stats) -> list[tuple[MetricDeclaration, Value]]:
    used, total = stats.kv_blocks_used, stats.kv_blocks_total
    block_size_tokens = engine.ready.block_size_tokens if engine.ready else 0
    return [
        (names.running_requests, stats.running_requests),
        (names.waiting_requests, stats.waiting_requests),
        (names.kv_usage_ratio, used / total if total else 0.0),
        (names.kv_blocks, {"used": used, "free": total - used}),
        (names.kv_block_size_tokens, block_size_tokens),
        (names.cache_config_info, Info((str(block_size_tokens), str(total)), 1)),
        *_kernels_value(engine),
        (names.preemptions_total, stats.preemptions_total),
        (names.leaked_kv_blocks_total, stats.leaked_blocks_total),
        (names.recomputed_tokens_total, stats.recomputed_tokens_total),
        (names.waiting_requests_by_reason, stats.waiting_by_reason),
        (names.waiting_requests_by_class, stats.waiting_by_class),
        (names.host_kv_blocks, stats.host_blocks),
        (names.saved_tokens_total, stats.saved_tokens_total),
        (names.restored_tokens_total, stats.restored_tokens_total),
        (names.exported_tokens_total, stats.exported_tokens_total),
        (names.imported_tokens_total, stats.imported_tokens_total),
        (names.kv_transfers_total, stats.kv_transfers),
        (names.achieved_bytes_per_second, stats.achieved_bytes_per_s),
        (names.steps_total, stats.steps_total),
        (names.step_seconds_total, stats.step_seconds_total),
        (names.scheduler_seconds_total, stats.scheduler_seconds_total),
        (names.drafts_total, stats.drafts_total),
        (names.draft_seconds_total, stats.draft_seconds_total),
        (names.draft_tokens_total, sum(stats.drafted_by_position)),
        (names.accepted_tokens_total, sum(stats.accepted_by_position)),
        (
            names.accepted_tokens_by_position_total,
            {str(place): count for place, count in enumerate(stats.accepted_by_position)},
        ),
    ]


def _usage_values(engine: EngineClient, usage: UsageLog) -> list[tuple[MetricDeclaration, Value]]:
    """Tokens of ended requests and, so far, of live ones."""
    totals = replace(usage.totals)
    for stream in engine.streams:
        if stream.last is not None:
            totals.add(stream.last)
    return [
        (names.prompt_tokens_total, totals.prompt_tokens),
        (names.cached_tokens_total, totals.cached_tokens),
        (names.completion_tokens_total, totals.completion_tokens),
        (names.prefix_queries_total, totals.prompt_tokens),
        (names.prefix_hits_total, totals.cached_tokens),
        (names.finished_requests_total, usage.ended_counts),
    ]
