"""Recording and alert rules for Prometheus, made from our own metrics.

python -m headrace.observability.alert_rules > deploy/prometheus/headrace.rules.yml

Objectives burn over two windows each, a long one that says that it matters and a short one that
says that it still goes on (the multiwindow, multi-burn-rate alerts of Google's SRE workbook). Where
little is asked, one slow request is a large share: nobody is told of fewer than `bad_events_min`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from headrace.observability import control_metrics, engine_metrics, gateway_metrics
from headrace.observability.metrics import MetricDeclaration

header = "# Made by `python -m headrace.observability.alert_rules`; change that, not this.\n"
runbook = "docs/operate/runbooks.md"


@dataclass(frozen=True, slots=True)
class Objective:
    """A share of events that has to be good."""

    name: str  # as in HeadraceAvailabilityBurns
    target: float
    bad: str  # events that were bad, as a rate; `{window}` stands for its span
    all: str
    says: str


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast an error budget of 30 days may be used before somebody is told."""

    factor: float
    long: str
    short: str
    severity: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong while it lasts."""

    name: str
    expression: str
    lasts: str
    severity: str
    says: str


burns = (
    Burn(14.4, "1h", "5m", "page"),  # 2% of the budget in an hour
    Burn(6, "6h", "30m", "page"),  # 5% in six
    Burn(1, "3d", "6h", "ticket"),  # 10% in three days
)
windows = ("5m", "30m", "1h", "6h", "3d")
seconds = {"1h": 3600, "6h": 21_600, "3d": 259_200}
bad_events_min = 10  # in the long window


def within(metric: MetricDeclaration, bound_s: float) -> tuple[str, str]:
    """The rates of observations above a bucket's bound, and of all."""
    counted = f"sum(rate({metric.name}_count[{{window}}]))"
    good = f'sum(rate({metric.name}_bucket{{{{le="{bound_s}"}}}}[{{window}}]))'
    return f"({counted} - {good})", counted


def by_model(metric: MetricDeclaration) -> str:
    """The rate of a counter, of each logical model apart."""
    return f"sum by (model) (rate({metric.name}[{{window}}]))"


first_output_bad, first_output_all = within(gateway_metrics.first_output_seconds, 2.5)
inter_token_bad, inter_token_all = within(engine_metrics.inter_token_seconds, 0.25)
answers = gateway_metrics.requests_total.name

objectives = (
    Objective(
        "Availability",
        0.999,
        f'sum(rate({answers}{{{{status=~"5.."}}}}[{{window}}]))',
        f"sum(rate({answers}[{{window}}]))",
        "requests that the platform failed (5xx)",
    ),
    Objective(
        "FirstToken",
        0.99,
        first_output_bad,
        first_output_all,
        "requests whose first output took over 2.5 s",
    ),
    Objective(
        "InterToken", 0.99, inter_token_bad, inter_token_all, "outputs that came after over 250 ms"
    ),
    Objective(
        "Goodput",
        0.99,
        f"({by_model(gateway_metrics.model_requests_total)}"
        f" - {by_model(gateway_metrics.model_good_requests_total)})",
        by_model(gateway_metrics.model_requests_total),
        "requests of a model that failed or missed its objectives",
    ),
)

conditions = (
    Condition(
        "HeadraceNoReplica",
        f'sum by (instance) ({gateway_metrics.endpoints.name}{{state="available"}}) == 0',
        "1m",
        "page",
        "The gateway has no replica that it may send requests to.",
    ),
    Condition(
        "HeadraceJournalUnhealthy",
        f"{gateway_metrics.journal_healthy.name} == 0",
        "1m",
        "page",
        "The gateway refuses requests because its journal cannot be written; look at its disk.",
    ),
    Condition(
        "HeadraceSettlementsUndurable",
        f"increase({gateway_metrics.undurable_settlements_total.name}[10m]) > 0",
        "0m",
        "ticket",
        "Answers ended before their settlements were on stable storage.",
    ),
    Condition(
        "HeadraceLedgerLags",
        f"{gateway_metrics.oldest_unposted_seconds.name} > 300",
        "5m",
        "ticket",
        "The ledger is minutes behind what gateways settled; usage, balances and invoices are too.",
    ),
    Condition(
        "HeadraceCertificateExpires",
        f"{gateway_metrics.certificate_expiry_seconds.name} < 14 * 86400",
        "1h",
        "ticket",
        "The gateway's TLS certificate expires within two weeks; clients will refuse it then.",
    ),
    Condition(
        "HeadraceSnapshotStale",
        f"{gateway_metrics.snapshot_age_seconds.name} > 60",
        "2m",
        "ticket",
        "The gateway serves from a configuration that the store has not confirmed for a minute; "
        "revoked keys still work there.",
    ),
    Condition(
        "HeadraceLimiterDegraded",
        f"{gateway_metrics.limiter_degraded.name} == 1",
        "1m",
        "ticket",
        "The limits that gateways share cannot be asked; only leases are spent.",
    ),
    Condition(
        "HeadraceQueueGrows",
        f"{gateway_metrics.waiting_requests.name} > 0 and "
        f"deriv({gateway_metrics.waiting_requests.name}[15m]) > 0",
        "15m",
        "ticket",
        "Requests wait for replicas, and more and more do; scale up, or look for slow replicas.",
    ),
    Condition(
        "HeadraceEngineRestarts",
        f"increase({engine_metrics.restarts_total.name}[30m]) > 2",
        "0m",
        "ticket",
        "An engine process keeps ending; its log says why.",
    ),
    Condition(
        "HeadraceKvFull",
        f"{engine_metrics.kv_usage_ratio.name} > 0.95",
        "15m",
        "ticket",
        "Live requests hold nearly all KV blocks; requests wait or are preempted.",
    ),
    Condition(
        "HeadracePreemptions",
        f"rate({engine_metrics.preemptions_total.name}[15m]) > 1",
        "15m",
        "ticket",
        "Running requests keep giving up their KV blocks; give the engine more KV or less load.",
    ),
    Condition(
        "HeadraceReconciliationDiffers",
        f"{control_metrics.unexplained_tokens.name} > 0",
        "10m",
        "ticket",
        "Engines counted other tokens than were billed in the last hour, and nothing explains it.",
    ),
    Condition(
        "HeadraceReconciliationReportDiffers",
        f"{control_metrics.report_unexplained_tokens.name} > 0",
        "2h",
        "ticket",
        "The stored reconciliation of an hour differs and nothing explains it, also after the hour "
        "was compared again; `headrace reconcile --show` names engines and models.",
    ),
    Condition(
        "HeadraceReconciliationLate",
        f"min({control_metrics.report_age_seconds.name}) > 9000",
        "10m",
        "ticket",
        "No hour was reconciled lately: no control plane leads, or the store does not take it.",
    ),
    Condition(
        "HeadraceLoopFails",
        " or ".join(
            f"increase({metric.name}[15m]) > 2"
            for metric in (
                gateway_metrics.loop_failures_total,
                control_metrics.loop_failures_total,
                engine_metrics.loop_failures_total,
            )
        ),
        "0m",
        "ticket",
        "A loop in the background keeps failing; what it does is late, or is not done at all.",
    ),
    Condition(
        "HeadraceNoLeader",
        f"max({control_metrics.leads.name}) == 0",
        "2m",
        "page",
        "No control plane leads: nothing is repaired, scaled or rolled out.",
    ),
    Condition(
        "HeadraceDeploymentShort",
        f"max({control_metrics.short_deployments.name}) > 0",
        "15m",
        "ticket",
        "A deployment has had fewer active replicas than wanted for a quarter of an hour.",
    ),
    Condition(
        "HeadraceNodesFrozen",
        f"max({control_metrics.nodes_frozen.name}) > 0",
        "1m",
        "page",
        "Many nodes fell silent together: nothing is moved from them until they or you say so.",
    ),
)


def rules() -> dict[str, Any]:
    """The rule file as data."""
    groups = [objective_group(objective) for objective in objectives]
    groups.append({"name": "headrace-conditions", "rules": [alert(each) for each in conditions]})
    return {"groups": groups}


def objective_group(objective: Objective) -> dict[str, Any]:
    """The ratios of an objective over every window, and its alerts."""
    recorded: list[dict[str, Any]] = [
        {
            "record": ratio_name(objective, window),
            "expr": f"{objective.bad} / ({objective.all} > 0)".format(window=window),
        }
        for window in windows
    ]
    recorded += [burn_alert(objective, burn) for burn in burns]
    return {"name": f"headrace-{objective.name.lower()}", "rules": recorded}


def ratio_name(objective: Objective, window: str) -> str:
    """The recorded share of bad events over a window."""
    return f"headrace:{objective.name.lower()}_bad:ratio_rate{window}"


def burn_alert(objective: Objective, burn: Burn) -> dict[str, Any]:
    """Told when the budget burns in both windows, and by more than a few events."""
    limit = f"{burn.factor * (1 - objective.target):.6g}"
    over = (f"{ratio_name(objective, window)} > {limit}" for window in (burn.long, burn.short))
    events = f"{objective.bad} * {seconds[burn.long]} >= {bad_events_min}".format(window=burn.long)
    budget = f"{(1 - objective.target) * 100:g}%"
    return {
        "alert": f"Headrace{objective.name}Burns",
        "expr": " and ".join((*over, events)),
        "labels": {"severity": burn.severity, "window": burn.long},
        "annotations": {
            "summary": f"The error budget of {budget} of {objective.says} burns "
            f"{burn.factor:g} times too fast.",
            "runbook": f"{runbook}#headrace{objective.name.lower()}burns",
        },
    }


def alert(condition: Condition) -> dict[str, Any]:
    """Told while a condition lasts."""
    return {
        "alert": condition.name,
        "expr": condition.expression,
        "for": condition.lasts,
        "labels": {"severity": condition.severity},
        "annotations": {
            "summary": condition.says,
            "runbook": f"{runbook}#{condition.name.lower()}",
        },
    }


def alert_names() -> Sequence[str]:
    """Every alert once, in order."""
    names = [f"Headrace{objective.name}Burns" for objective in objectives]
    return [*names, *(condition.name for condition in conditions)]


def text() -> str:
    """The rule file."""
    return header + yaml.safe_dump(rules(), sort_keys=False, width=100)


if __name__ == "__main__":
    sys.stdout.write(text())
