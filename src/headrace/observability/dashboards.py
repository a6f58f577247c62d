"""Grafana dashboards, made from our own metrics.

python -m headrace.observability.dashboards deploy/grafana
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.observability import control_metrics, engine_metrics, gateway_metrics
from headrace.observability.metrics import MetricDeclaration

panel_width, panel_height, panels_a_row = 8, 7, 3
source = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: queries by what their lines are called."""

    title: str
    unit: str  # as Grafana names it
    queries: dict[str, str]
    says: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Some charts, from left to right."""

    name: str
    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


def rate(metric: MetricDeclaration, by: str = "") -> str:
    """How much a counter grows a second, over all processes."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric.name}[$__rate_interval]))"


def ratio(part: MetricDeclaration, whole: MetricDeclaration) -> str:
    """How much of one counter another one is."""
    return f"{rate(part)} / {rate(whole)}"


def quantiles(metric: MetricDeclaration) -> dict[str, str]:
    """The usual quantiles of a histogram."""
    buckets = f"sum by (le) (rate({metric.name}_bucket[$__rate_interval]))"
    return {f"p{share}": f"histogram_quantile(0.{share}, {buckets})" for share in (50, 90, 99)}


def total(metric: MetricDeclaration, by: str = "") -> str:
    """A gauge over all processes."""
    return f"sum by ({by}) ({metric.name})" if by else f"sum({metric.name})"


gateway, engine, control = gateway_metrics, engine_metrics, control_metrics
service = Dashboard(
    "service",
    "headrace: service",
    (
        Panel("Answers by status", "reqps", {"{{status}}": rate(gateway.requests_total, "status")}),
        Panel("Settled tokens", "short", {"{{class}}": rate(gateway.tokens_total, "class")}),
        Panel(
            "Requests",
            "short",
            {
                "running": total(gateway.running_requests),
                "waiting": total(gateway.waiting_requests),
            },
        ),
        Panel("First output", "s", quantiles(gateway.first_output_seconds)),
        Panel("Whole answer", "s", quantiles(gateway.request_duration_seconds)),
        Panel("Wait for a replica", "s", quantiles(gateway.queue_wait_seconds)),
        Panel(
            "How requests ended",
            "reqps",
            {"{{outcome}}": rate(gateway.settlements_total, "outcome")},
        ),
        Panel("Replicas", "short", {"{{state}}": total(gateway.endpoints, "state")}),
        Panel(
            "Failures on the way",
            "reqps",
            {
                "retries": rate(gateway.retries_total),
                "fallbacks": rate(gateway.fallbacks_total),
                "ejections": rate(gateway.ejections_total),
            },
        ),
        Panel(
            "Prefix prediction",
            "short",
            {"{{what}}": rate(gateway.predicted_tokens_total, "what")},
            "Prompt tokens a second that the router expected in caches, and what was there.",
        ),
        Panel(
            "Refused while saturated",
            "reqps",
            {"{{priority}}": rate(gateway.saturated_refusals_total, "priority")},
        ),
        Panel(
            "Goodput by model",
            "percentunit",
            {
                "{{model}}": f"{rate(gateway.model_good_requests_total, 'model')}"
                f" / {rate(gateway.model_requests_total, 'model')}"
            },
            "The share of requests that finished within their model's objectives.",
        ),
        Panel(
            "Behind the ledger",
            "short",
            {
                "records": total(gateway.unposted_records),
                "oldest (s)": f"max({gateway.oldest_unposted_seconds.name})",
            },
        ),
        Panel(
            "Books",
            "short",
            {
                "journal healthy": f"min({gateway.journal_healthy.name})",
                "limiter degraded": f"max({gateway.limiter_degraded.name})",
                "snapshot age (s)": f"max({gateway.snapshot_age_seconds.name})",
            },
        ),
        Panel(
            "Replicas as the control plane sees them",
            "short",
            {
                "{{state}}": f"max by (state) ({control.replicas.name})",
                "short deployments": f"max({control.short_deployments.name})",
                "leaders": f"sum({control.leads.name})",
            },
        ),
        Panel(
            "Billed and counted tokens that differ",
            "short",
            {
                "all": f"max({control.difference_tokens.name})",
                "without a reason": f"max({control.unexplained_tokens.name})",
            },
            "Of the last hour; what a restart or a running request explains is only in `all`.",
        ),
    ),
)
engines = Dashboard(
    "engines",
    "headrace: engines",
    (
        Panel(
            "Tokens",
            "short",
            {
                "prompt": rate(engine.prompt_tokens_total),
                "cached": rate(engine.cached_tokens_total),
                "generated": rate(engine.completion_tokens_total),
            },
        ),
        Panel(
            "Requests",
            "short",
            {"running": total(engine.running_requests), "waiting": total(engine.waiting_requests)},
        ),
        Panel("KV in use", "percentunit", {"{{instance}}": engine.kv_usage_ratio.name}),
        Panel("First token", "s", quantiles(engine.first_token_seconds)),
        Panel("Between tokens", "s", quantiles(engine.inter_token_seconds)),
        Panel("Wait in the engine", "s", quantiles(engine.queue_seconds)),
        Panel(
            "Step",
            "s",
            {
                "runner": ratio(engine.step_seconds_total, engine.steps_total),
                "scheduler": ratio(engine.scheduler_seconds_total, engine.steps_total),
            },
        ),
        Panel(
            "Prefix cache hits",
            "percentunit",
            {"hits": ratio(engine.prefix_hits_total, engine.prefix_queries_total)},
        ),
        Panel(
            "Speculation",
            "percentunit",
            {
                "accepted": ratio(engine.accepted_tokens_total, engine.draft_tokens_total),
            },
        ),
        Panel("Preemptions", "ops", {"preemptions": rate(engine.preemptions_total)}),
        Panel("Recomputed tokens", "short", {"tokens": rate(engine.recomputed_tokens_total)}),
        Panel(
            "How requests ended",
            "reqps",
            {"{{finished_reason}}": rate(engine.finished_requests_total, "finished_reason")},
        ),
    ),
)
dashboards = (service, engines)


def as_grafana(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": f"headrace-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["headrace"],
        "schemaVersion": 41,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus"}],
        },
        "panels": [panel(number, each) for number, each in enumerate(dashboard.panels)],
    }


def panel(number: int, shown: Panel) -> dict[str, Any]:
    """One chart in its place."""
    row, column = divmod(number, panels_a_row)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": shown.title,
        "description": shown.says,
        "datasource": source,
        "gridPos": {
            "x": column * panel_width,
            "y": row * panel_height,
            "w": panel_width,
            "h": panel_height,
        },
        "fieldConfig": {"defaults": {"unit": shown.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": expression,
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(shown.queries.items())
        ],
    }


def text(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    return json.dumps(as_grafana(dashboard), indent=2) + "\n"


if __name__ == "__main__":
    for each in dashboards:
        (Path(sys.argv[1]) / f"{each.name}.json").write_text(text(each))
