"""The metrics of a gateway, declared once; no tenant, key or request is ever a label."""

from headrace.observability.metrics import MetricDeclaration, MetricKind

counter, gauge, histogram = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

requests_total = MetricDeclaration(
    "headrace_gateway_requests_total", counter, "Answers by HTTP status.", label="status"
)
settlements_total = MetricDeclaration(
    "headrace_gateway_settlements_total",
    counter,
    "Admitted requests that ended, by outcome: finished, aborted, failed, rejected.",
    label="outcome",
)
tokens_total = MetricDeclaration(
    "headrace_gateway_tokens_total",
    counter,
    "Settled tokens by class: prompt (cached ones included), cached, completion.",
    label="class",
)
counted_settlements_total = MetricDeclaration(
    "headrace_gateway_counted_settlements_total",
    counter,
    "Settlements by what passed, because the engine could not be asked.",
)
undurable_settlements_total = MetricDeclaration(
    "headrace_gateway_undurable_settlements_total",
    counter,
    "Answers that ended before their settlement was on stable storage; the disk was full or slow.",
)
retries_total = MetricDeclaration(
    "headrace_gateway_retries_total", counter, "Attempts at another replica before the first byte."
)
fallbacks_total = MetricDeclaration(
    "headrace_gateway_fallbacks_total",
    counter,
    "Requests that went on to a fallback model, because no replica of the one before could answer.",
)
ejections_total = MetricDeclaration(
    "headrace_gateway_ejections_total",
    counter,
    "Failures that ejected a replica from routing for a while.",
)
hedges_total = MetricDeclaration(
    "headrace_gateway_hedges_total",
    counter,
    "Requests that a second replica got too, by whether it answered first.",
    label="result",
)
hedge_lost_tokens_total = MetricDeclaration(
    "headrace_gateway_hedge_lost_tokens_total",
    counter,
    "Tokens of attempts that another one outran; nobody is billed for them.",
)
retried_tokens_total = MetricDeclaration(
    "headrace_gateway_retried_tokens_total",
    counter,
    "Tokens of attempts that broke and that another one followed; nobody is billed for them.",
)
drains_total = MetricDeclaration(
    "headrace_gateway_drains_total",
    counter,
    "Answers that their callers left and that engines run to their end: read to it (done), broken "
    "off or cut at a bound (cut), or not read on because there were too many (refused).",
    label="result",
)
splits_total = MetricDeclaration(
    "headrace_gateway_splits_total",
    counter,
    "Prompts that were sent to a replica for prompts first: done, or failed and computed where "
    "they were answered.",
    label="result",
)
predicted_tokens_total = MetricDeclaration(
    "headrace_gateway_predicted_prefix_tokens_total",
    counter,
    "Prompt tokens that the router expected in caches: predicted; what was there of all prompts: "
    "cached; predicted and not there: missed; there and not predicted: surprise.",
    label="what",
)
model_requests_total = MetricDeclaration(
    "headrace_gateway_model_requests_total",
    counter,
    "Admitted requests that ended other than by their caller's doing, by logical model.",
    label="model",
)
model_good_requests_total = MetricDeclaration(
    "headrace_gateway_model_good_requests_total",
    counter,
    "Those of them that finished within their model's objectives: the goodput.",
    label="model",
)
unposted_records = MetricDeclaration(
    "headrace_gateway_unposted_records", gauge, "Records of the journal that no ledger has yet."
)
oldest_unposted_seconds = MetricDeclaration(
    "headrace_gateway_oldest_unposted_seconds",
    gauge,
    "How old the oldest record is that no ledger has yet, at most; 0 where there is none.",
)
journal_bytes = MetricDeclaration(
    "headrace_gateway_journal_bytes", gauge, "What the journal takes of its disk."
)
certificate_expiry_seconds = MetricDeclaration(
    "headrace_gateway_certificate_expiry_seconds",
    gauge,
    "Time until the first certificate of the TLS chain expires; absent without TLS.",
)
running_requests = MetricDeclaration(
    "headrace_gateway_running_requests", gauge, "Requests that hold a reservation now."
)
waiting_requests = MetricDeclaration(
    "headrace_gateway_waiting_requests",
    gauge,
    "Admitted requests that wait because every replica of their model is full.",
)
saturated_refusals_total = MetricDeclaration(
    "headrace_gateway_saturated_refusals_total",
    counter,
    "Requests refused because their model was saturated, by priority class.",
    label="priority",
)
queue_wait_seconds = MetricDeclaration(
    "headrace_gateway_queue_wait_seconds",
    histogram,
    "How long those waited that had to wait for a replica and got one.",
)
endpoints = MetricDeclaration(
    "headrace_gateway_endpoints",
    gauge,
    "Replicas by what the router may do with them: available, ejected, inactive.",
    label="state",
)
snapshot_age_seconds = MetricDeclaration(
    "headrace_gateway_snapshot_age_seconds",
    gauge,
    "Time since the store last confirmed the configuration that is served from.",
)
journal_healthy = MetricDeclaration(
    "headrace_gateway_journal_healthy", gauge, "1 while reservations are accepted, else 0."
)
limiter_degraded = MetricDeclaration(
    "headrace_limiter_degraded",
    gauge,
    "1 while the limits that gateways share cannot be asked, so that only leases are spent.",
)
dropped_log_lines_total = MetricDeclaration(
    "headrace_gateway_dropped_log_lines_total",
    counter,
    "Access log lines that found their buffer full.",
)
unkept_responses_total = MetricDeclaration(
    "headrace_gateway_unkept_responses_total",
    counter,
    "Responses that were sent and could not be stored; the log says why.",
)
loop_failures_total = MetricDeclaration(
    "headrace_gateway_loop_failures_total",
    counter,
    "Faults of loops in the background; each is logged, and its loop goes on after a pause.",
    label="loop",
)
request_duration_seconds = MetricDeclaration(
    "headrace_gateway_request_duration_seconds",
    histogram,
    "From the request's headers to the end of its answer, for generating routes.",
)
first_output_seconds = MetricDeclaration(
    "headrace_gateway_first_output_seconds",
    histogram,
    "From admission to the first output of an engine.",
)
