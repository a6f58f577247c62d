"""What operators look at, asked of the demo: a real Prometheus scrapes it with our rules, and a
collector gets each request as one trace, from the client to the engine's steps."""

import json
import re
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.observability import alert_rules
from headrace.sim.child_process import wait_until
from headrace.sim.otlp_collector import CollectedSpan, OtlpCollector
from headrace.sim.platform_process import PlatformProcess
from headrace.sim.prometheus_server import PrometheusServer

pytestmark = pytest.mark.e2e

root = Path(__file__).parents[2]
canary = "canary-9f2c71-never-in-a-trace"
client_trace = "0af7651916cd43dd8448eb211c80319c"
client_span = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as started:
        yield started


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector
) -> Iterator[PlatformProcess]:
    patch = pytest.MonkeyPatch()
    patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo", "--otlp-endpoint", collector.url) as started:
        patch.undo()
        ask(started)
        yield started


def ask(platform: PlatformProcess) -> str:
    """One streamed request with a parent, a canary in its prompt and others where none belong."""
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": f"Say hello. {canary}"}],
        "max_tokens": 12,
        "temperature": 0,  # what is drawn may end after one token
        "stream": True,
    }
    request = urllib.request.Request(
        f"{platform.gateway_url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "authorization": f"Bearer {platform.api_key}",
            "content-type": "application/json",
            "traceparent": f"00-{client_trace}-{client_span}-01",
            "tracestate": f"vendor={canary}",
            "baggage": f"secret={canary}",
            "user-agent": canary,
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return str(answer.headers["x-request-id"])


def test_a_request_is_one_trace_from_the_client_to_the_engines_steps(
    platform: PlatformProcess, collector: OtlpCollector
) -> None:
    def ours() -> list[CollectedSpan]:
        return [span for span in collector.spans() if span.trace_id == client_trace]

    wait_until(lambda: {"POST /v1/chat/completions", "decode"} <= {span.name for span in ours()})
    spans = {(span.service, span.name): span for span in ours()}
    gateway, engine = "headrace-gateway", "headrace-engine"
    request = spans[gateway, "POST /v1/chat/completions"]
    attempt = spans[gateway, "attempt"]
    chat = spans[engine, "chat smollm2-135m-instruct"]
    assert request.parent_id == client_span
    for phase in ("admission", "queue", "attempt", "settle"):
        assert spans[gateway, phase].parent_id == request.span_id
    assert chat.parent_id == attempt.span_id
    for phase in ("queue", "prefill", "decode"):
        assert spans[engine, phase].parent_id == chat.span_id
        assert chat.start_ns <= spans[engine, phase].start_ns
    tokens = request.attributes["gen_ai.usage.output_tokens"]
    assert isinstance(tokens, int)
    assert 1 < tokens <= 12
    assert request.attributes["gen_ai.request.model"] == "smollm2-135m-instruct"
    assert request.attributes["headrace.outcome"] == "finished"
    outputs = spans[engine, "decode"].attributes["headrace.decode.outputs"]
    assert isinstance(outputs, int)
    assert 1 < outputs <= tokens  # two tokens may come in one output
    assert spans[gateway, "settle"].attributes["headrace.settlement.durable"] is True
    assert not any(span.failed for span in ours())


def test_no_secret_and_no_text_of_a_caller_is_in_a_trace(
    platform: PlatformProcess, collector: OtlpCollector
) -> None:
    request_id = ask(platform)
    wait_until(lambda: any(request_id.encode() in body for body in collector.bodies))
    secrets = [platform.api_key, platform.api_key.rpartition("_")[2], canary]
    secrets += [platform.engine_key(replica) for replica in platform.replicas()]
    for body in collector.bodies:
        assert not [secret for secret in secrets if secret.encode() in body]


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_every_loop_is_told_of_and_its_runbook_says_what_waits(platform: PlatformProcess) -> None:
    page = (root / alert_rules.runbook).read_text()
    runbook = page.partition("## HeadraceLoopFails")[2].partition("\n## ")[0]
    for url, loop in ((platform.gateway_url, "snapshot"), (platform.admin_url, "alerts")):
        names = re.findall(r'_loop_failures_total{loop="(\w+)"} 0\.0', text_of(f"{url}/metrics"))
        assert loop in names
        assert [name for name in names if f"`{name}`" not in runbook] == []
        assert json.loads(text_of(f"{url}/readyz"))["state"] == "ready"


@pytest.mark.skipif(bool(PrometheusServer.missing()), reason=PrometheusServer.missing())
def test_prometheus_scrapes_the_platform_and_evaluates_our_rules(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    platform.wait_active(1)
    targets = {"gateway": platform.gateway_url, "control": platform.admin_url}
    rules = root / "deploy" / "prometheus" / "headrace.rules.yml"
    with PrometheusServer(
        tmp_path / "prometheus",
        targets,
        discovered_at=f"{platform.admin_url}/metrics/targets",
        rule_files=(rules,),
    ) as prometheus:
        wait_until(lambda: list(prometheus.query("up").values()) == [1.0, 1.0, 1.0])
        groups = [group["name"] for group in alert_rules.rules()["groups"]]
        wait_until(lambda: sorted(prometheus.rule_groups()) == sorted(groups))
        for expression in (
            'headrace_gateway_requests_total{status="200"}',
            'headrace_gateway_model_good_requests_total{model="smollm2-135m-instruct"}',
            'headrace_engine_steps_total{replica="smollm2-135m-instruct-0"}',
            "gen_ai_server_time_to_first_token_seconds_count"
            '{gen_ai_request_model="smollm2-135m-instruct"}',
            "gen_ai_server_time_per_output_token_seconds_count",
            'gen_ai_client_token_usage_sum{gen_ai_token_type="output"}',
            'headrace_control_replicas{state="active"}',
            "headrace_control_leads",
        ):
            (value,) = prometheus.query(expression).values()
            assert value > 0, expression
        assert prometheus.query('ALERTS{alertstate="firing",severity="page"}') == {}
        for name in (
            "headrace_gateway_first_output_seconds_bucket",
            "gen_ai_server_time_to_first_token_seconds_bucket",
        ):
            assert {"trace_id": client_trace} in prometheus.exemplars(name)


def test_a_debug_bundle_has_each_replicas_metrics_and_no_secret(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    platform.wait_active(1)
    ask(platform)
    out = tmp_path / "bundle.tar.gz"
    subprocess.run(
        [
            *(sys.executable, "-m", "headrace.cli.main", "debug", "bundle", "--out", str(out)),
            *("--data-dir", str(platform.data_dir)),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    with tarfile.open(out) as archive:
        read = {item.name: archive.extractfile(item) for item in archive}
        files = {name.partition("/")[2]: file.read() for name, file in read.items() if file}
    assert b"headrace_engine_steps_total" in files["metrics/smollm2-135m-instruct-0.txt"]
    assert b"missing" not in files["MANIFEST.txt"], files["MANIFEST.txt"].decode()
    secrets = [platform.api_key, platform.api_key.rpartition("_")[2], platform.admin_token, canary]
    secrets += [platform.engine_key(replica) for replica in platform.replicas()]
    for name, content in files.items():
        assert not [secret for secret in secrets if secret.encode() in content], name
