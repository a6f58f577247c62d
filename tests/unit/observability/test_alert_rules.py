"""Alert rules and dashboards: current, valid to Prometheus itself, and telling when they must."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.observability import alert_rules, dashboards, reference_page
from headrace.observability.metrics import MetricKind

root = Path(__file__).parents[3]
rule_file = root / "deploy" / "prometheus" / "headrace.rules.yml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)


def promtool(*arguments: str) -> str:
    # No time limit of its own: seconds of CPU can be minutes where others have the processors.
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_what_the_code_makes() -> None:
    assert rule_file.read_text() == alert_rules.text(), "run `make reference`"
    for dashboard in dashboards.dashboards:
        path = root / "deploy" / "grafana" / f"{dashboard.name}.json"
        assert path.read_text() == dashboards.text(dashboard), "run `make reference`"


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(rule_file))


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


def told(when: str, alert: str, severities: list[str]) -> dict[str, Any]:
    return {"eval_time": when, "alertname": alert, "severities": severities}


cases = {
    "availability": (
        [
            series('headrace_gateway_requests_total{status="200"}', "0+90x120"),
            series('headrace_gateway_requests_total{status="503"}', "0+10x120"),
        ],
        [told("2h", "HeadraceAvailabilityBurns", ["page", "page", "ticket"])],
    ),
    "one slow request of a quiet platform": (
        [
            series('headrace_gateway_first_output_seconds_bucket{le="2.5"}', "0 5x120"),
            series("headrace_gateway_first_output_seconds_count", "0 6x120"),
        ],
        [told("4m", "HeadraceFirstTokenBurns", []), told("2h", "HeadraceFirstTokenBurns", [])],
    ),
    "refusals are not failures": (
        [
            series('headrace_gateway_requests_total{status="200"}', "0+90x120"),
            series('headrace_gateway_requests_total{status="429"}', "0+90x120"),
        ],
        [told("2h", "HeadraceAvailabilityBurns", [])],
    ),
    "first tokens": (
        [
            series('headrace_gateway_first_output_seconds_bucket{le="2.5"}', "0+50x120"),
            series("headrace_gateway_first_output_seconds_count", "0+100x120"),
        ],
        [told("2h", "HeadraceFirstTokenBurns", ["page", "page", "ticket"])],
    ),
    "no replica": (
        [
            series('headrace_gateway_endpoints{state="available",instance="g"}', "1x5 0x10"),
            series('headrace_gateway_endpoints{state="ejected",instance="g"}', "0x5 1x10"),
        ],
        [told("5m", "HeadraceNoReplica", []), told("8m", "HeadraceNoReplica", ["page"])],
    ),
    "journal": (
        [series("headrace_gateway_journal_healthy", "1x5 0x10")],
        [told("8m", "HeadraceJournalUnhealthy", ["page"])],
    ),
    "limiter": (
        [series("headrace_limiter_degraded", "0x5 1x5 0x10")],
        [
            told("8m", "HeadraceLimiterDegraded", ["ticket"]),
            told("15m", "HeadraceLimiterDegraded", []),
        ],
    ),
    "goodput is burnt by one model and not by another": (
        [
            series('headrace_gateway_model_requests_total{model="slow"}', "0+100x120"),
            series('headrace_gateway_model_good_requests_total{model="slow"}', "0+50x120"),
            series('headrace_gateway_model_requests_total{model="quick"}', "0+100x120"),
            series('headrace_gateway_model_good_requests_total{model="quick"}', "0+100x120"),
        ],
        [told("2h", "HeadraceGoodputBurns", ["page", "page", "ticket"])],
    ),
    "the ledger lags": (
        [series("headrace_gateway_oldest_unposted_seconds", "0x5 60+60x20")],
        [told("8m", "HeadraceLedgerLags", []), told("20m", "HeadraceLedgerLags", ["ticket"])],
    ),
    "a certificate": (
        [series("headrace_gateway_certificate_expiry_seconds", "1000000-60x100")],
        [told("90m", "HeadraceCertificateExpires", ["ticket"])],
    ),
    "queue": (
        [series("headrace_gateway_waiting_requests", "0+3x60")],
        [told("50m", "HeadraceQueueGrows", ["ticket"])],
    ),
    "bills that differ": (
        [series("headrace_control_unexplained_tokens", "0x5 7x20")],
        [
            told("10m", "HeadraceReconciliationDiffers", []),
            told("17m", "HeadraceReconciliationDiffers", ["ticket"]),
        ],
    ),
    "a stored report that differs": (
        [series("headrace_control_reconciliation_unexplained_tokens", "0x5 7x200")],
        [
            told("2h", "HeadraceReconciliationReportDiffers", []),
            told("130m", "HeadraceReconciliationReportDiffers", ["ticket"]),
        ],
    ),
    "no report": (
        [
            series('headrace_control_reconciliation_age_seconds{instance="a"}', "0+60x300"),
            series('headrace_control_reconciliation_age_seconds{instance="b"}', "60+60x300"),
        ],
        [
            told("2h", "HeadraceReconciliationLate", []),
            told("3h", "HeadraceReconciliationLate", ["ticket"]),
        ],
    ),
    "outputs": (
        [
            series('headrace_engine_inter_token_latency_seconds_bucket{le="0.25"}', "0+50x120"),
            series("headrace_engine_inter_token_latency_seconds_count", "0+100x120"),
        ],
        [told("2h", "HeadraceInterTokenBurns", ["page", "page", "ticket"])],
    ),
    "nobody leads": (
        [
            series('headrace_control_leads{instance="a"}', "1x5 0x10"),
            series('headrace_control_leads{instance="b"}', "0x15"),
        ],
        [told("4m", "HeadraceNoLeader", []), told("9m", "HeadraceNoLeader", ["page"])],
    ),
    "a loop keeps failing": (
        [series('headrace_control_loop_failures_total{loop="alerts"}', "0x10 1+1x20")],
        [told("9m", "HeadraceLoopFails", []), told("16m", "HeadraceLoopFails", ["ticket"])],
    ),
    "a loop failed once": (
        [series('headrace_control_loop_failures_total{loop="alerts"}', "0x10 1x20")],
        [told("16m", "HeadraceLoopFails", [])],
    ),
    "a deployment is short": (
        [series("headrace_control_short_deployments", "0x5 1x30")],
        [told("25m", "HeadraceDeploymentShort", ["ticket"])],
    ),
    "many nodes are silent": (
        [series("headrace_control_nodes_frozen", "0x5 1x30")],
        [told("9m", "HeadraceNodesFrozen", ["page"])],
    ),
    "a queue that drains": (
        [series("headrace_gateway_waiting_requests", "300-3x60")],
        [told("50m", "HeadraceQueueGrows", [])],
    ),
}


def worlds() -> list[list[str]]:
    """The cases by name, those together that have no series in common: one run looks at all."""
    found: list[list[str]] = []
    for name, (inputs, _) in cases.items():
        for world in found:
            if not any(names_of(inputs) & names_of(cases[other][0]) for other in world):
                world.append(name)
                break
        else:
            found.append([name])
    return found


def names_of(inputs: list[dict[str, str]]) -> set[str]:
    """The metrics of some series; a histogram is one."""
    return {
        each["series"].partition("{")[0].removesuffix("_bucket").removesuffix("_count")
        for each in inputs
    }


@needs_promtool
@pytest.mark.timeout(600)
def test_alerts_are_told_when_they_must_be(tmp_path: Path) -> None:
    """Prometheus' own rule tests, with the severities that are told at each moment."""
    tests = [
        {
            "name": ", ".join(world),
            "interval": "1m",
            "input_series": [each for name in world for each in cases[name][0]],
            "promql_expr_test": [
                {
                    "expr": f'count by (severity) (ALERTS{{alertname="{each["alertname"]}",'
                    f'alertstate="firing",severity="{severity}"}})',
                    "eval_time": each["eval_time"],
                    "exp_samples": [
                        {
                            "labels": f'{{severity="{severity}"}}',
                            "value": each["severities"].count(severity),
                        }
                    ]
                    if severity in each["severities"]
                    else [],
                }
                for name in world
                for each in cases[name][1]
                for severity in ("page", "ticket")
            ],
        }
        for world in worlds()
    ]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rule_file)], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(path))


def declared_series() -> set[str]:
    names: set[str] = set()
    for _, module in reference_page.pages:
        for metric in reference_page.declarations(module):
            suffixes = (
                ("_bucket", "_count", "_sum") if metric.kind is MetricKind.HISTOGRAM else ("",)
            )
            names |= {metric.name + suffix for suffix in suffixes}
    return names


def test_rules_and_dashboards_ask_for_metrics_that_exist() -> None:
    text = alert_rules.text() + "".join(map(dashboards.text, dashboards.dashboards))
    asked = set(re.findall(r"headrace_[a-z_]+", text))
    assert asked <= declared_series()


def test_each_alert_has_a_runbook() -> None:
    sections = re.findall(
        r"^## (\w+)$", (root / alert_rules.runbook).read_text(), flags=re.MULTILINE
    )
    assert sections == list(alert_rules.alert_names())


def test_every_alert_that_operators_need_is_there_and_links_its_runbook() -> None:
    told_of = {
        rule["alert"]: rule["annotations"]["runbook"]
        for group in alert_rules.rules()["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert told_of.keys() >= {
        "HeadraceFirstTokenBurns",
        "HeadraceInterTokenBurns",
        "HeadraceAvailabilityBurns",
        "HeadraceQueueGrows",
        "HeadraceLedgerLags",
        "HeadraceLimiterDegraded",
        "HeadraceReconciliationDiffers",
        "HeadraceReconciliationReportDiffers",
        "HeadraceReconciliationLate",
        "HeadraceCertificateExpires",
    }
    for name, link in told_of.items():
        assert link == f"{alert_rules.runbook}#{name.lower()}"


def test_dashboards_are_what_grafana_imports() -> None:
    for dashboard in dashboards.dashboards:
        made = json.loads(dashboards.text(dashboard))
        places = [tuple(panel["gridPos"].values()) for panel in made["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["targets"] for panel in made["panels"])
