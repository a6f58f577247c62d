"""The metrics of a control plane, declared once."""

from headrace.observability.metrics import MetricDeclaration, MetricKind

gauge = MetricKind.GAUGE

leads = MetricDeclaration(
    "headrace_control_leads", gauge, "1 on the control plane that acts, 0 on those that wait."
)
store_revision = MetricDeclaration(
    "headrace_control_store_revision", gauge, "Grows with every change of the store."
)
replicas = MetricDeclaration(
    "headrace_control_replicas",
    gauge,
    "Replicas by state: creating, loading, active, draining, failed.",
    label="state",
)
nodes = MetricDeclaration(
    "headrace_control_nodes", gauge, "Nodes by state: joining, ready, lost.", label="state"
)
nodes_frozen = MetricDeclaration(
    "headrace_control_nodes_frozen",
    gauge,
    "1 while so many nodes are silent at once that nothing is moved from them.",
)
short_deployments = MetricDeclaration(
    "headrace_control_short_deployments",
    gauge,
    "Deployments with fewer active replicas than wanted.",
)
difference_tokens = MetricDeclaration(
    "headrace_control_difference_tokens",
    gauge,
    "Tokens of the last hour that engines counted and nobody was billed, or the other way round.",
)
unexplained_tokens = MetricDeclaration(
    "headrace_control_unexplained_tokens",
    gauge,
    "Those of them for which no reason is known: a restart, a request that still runs.",
)
report_age_seconds = MetricDeclaration(
    "headrace_control_reconciliation_age_seconds",
    gauge,
    "Since the end of the newest hour whose reconciliation is stored.",
)
report_unexplained_tokens = MetricDeclaration(
    "headrace_control_reconciliation_unexplained_tokens",
    gauge,
    "Tokens of that hour that differ between engines and bills, and for which no reason is known.",
)
loop_failures_total = MetricDeclaration(
    "headrace_control_loop_failures_total",
    MetricKind.COUNTER,
    "Faults of loops in the background; each is logged, and its loop goes on after a pause.",
    label="loop",
)
