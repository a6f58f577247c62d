"""The reference page of the metrics, made from their declarations.

python -m headrace.observability.reference_page > docs/reference/metrics.md
"""

import sys
from types import ModuleType

from headrace.observability import control_metrics, engine_metrics, gateway_metrics
from headrace.observability.metrics import MetricDeclaration

opening = """# Metrics

Made by `python -m headrace.observability.reference_page`; a test fails when this page is not what
that command prints.

`/metrics` answers in Prometheus' text format, on an engine server, on a gateway, and on the control
plane's port, there for programs of the same machine. While `--otlp-endpoint` is set, scrapers that
read OpenMetrics get exemplars with the ids of traces. A name ends in its unit. No tenant, key or
request is ever a label, so that the number of series is bounded; what differs by tenant is in the
ledger (`headrace usage`). Where a metric has another engine's name or OpenTelemetry's as well, the
same value is there twice, so that routers and dashboards made for those read ours.
"""
pages: tuple[tuple[str, ModuleType], ...] = (
    ("Engine server", engine_metrics),
    ("Gateway", gateway_metrics),
    ("Control plane", control_metrics),
)


def declarations(module: ModuleType) -> list[MetricDeclaration]:
    """The metrics that a module declares, in its order."""
    return [value for value in vars(module).values() if isinstance(value, MetricDeclaration)]


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([opening, *(section(title, module) for title, module in pages)])


def section(title: str, module: ModuleType) -> str:
    """One program's metrics as a table."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {labels_of(metric)} | {metric.doc} | "
        f"{', '.join(f'`{name}`' for name in (metric.alias, metric.gen_ai) if name)} |"
        for metric in declarations(module)
    ]
    head = ["| name | kind | label | what it says | also as |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", *head, *rows, ""])


def labels_of(metric: MetricDeclaration) -> str:
    """A metric's own labels."""
    return ", ".join(metric.info_labels) or metric.label or ""


if __name__ == "__main__":
    sys.stdout.write(page())
