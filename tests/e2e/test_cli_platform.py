"""The platform's commands against a real `headrace up --demo`: from a tenant to its usage."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

command = (sys.executable, "-m", "headrace.cli.main")
model = "smollm2-135m-instruct"
settled_within_s = 60.0  # revocation 5 s, the shipper 1 s, and a busy machine


@dataclass(frozen=True)
class RunningUp:
    """A platform of this test, and its commands."""

    gateway_url: str
    environment: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )

    def run_json(self, *arguments: str) -> dict[str, Any]:
        ended = self.run(*arguments, "--json")
        assert ended.returncode == 0, ended.stderr
        parsed = json.loads(ended.stdout)
        assert isinstance(parsed, dict)
        return parsed

    def ask(self, key: str, asked_model: str = model) -> tuple[int, dict[str, Any]]:
        """One short chat: the status and the body."""
        body = {
            "model": asked_model,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "Hello!"}],
        }
        request = urllib.request.Request(
            f"{self.gateway_url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {key}", "content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def ask_until(self, status: int, key: str) -> dict[str, Any]:
        """Ask until the gateway has heard of a change; its last body."""
        deadline_s = time.monotonic() + settled_within_s
        while True:
            seen, body = self.ask(key)
            if seen == status:
                return body
            assert time.monotonic() < deadline_s, (seen, body)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    directory: Path = tmp_path_factory.mktemp("up")
    environment = {**os.environ, "HEADRACE_DATA_DIR": str(directory / "data")}
    ready = directory / "ready.json"
    process = subprocess.Popen(
        [*command, "up", "--demo", "--port", "0", "--admin-port", "0", "--ready-file", str(ready)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if "is ready" in line:
                break
        assert ready.exists(), said
        yield RunningUp(json.loads(ready.read_text())["gateway_url"], environment)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_from_a_tenant_to_its_usage(up: RunningUp) -> None:
    up.run_json("tenants", "create", "acme")
    up.run_json("projects", "create", "web", "--tenant", "acme")
    made = up.run_json(
        *("keys", "create", "--project", "acme/web", "--models", model, "--expires-in", "30d")
    )
    key = made["key"]
    refused = up.ask_until(402, key)  # prepaid, and nothing was paid in
    assert refused["error"]["code"] == "insufficient_credit"
    up.run_json("tenants", "credit", "acme", "1.00", "--reason", "first payment")
    answer = up.ask_until(200, key)

    deadline_s = time.monotonic() + settled_within_s
    arguments = ("usage", "--by", "tenant,model", "--tenant", "acme", "--since", "1d")
    while not (usage := up.run_json(*arguments))["items"]:
        assert time.monotonic() < deadline_s, "the request never reached the ledger"
    (row,) = usage["items"]
    assert (row["tenant"], row["model"], row["requests"]) == ("acme", model, 1)
    assert row["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert row["completion_tokens"] == answer["usage"]["completion_tokens"]
    balance = up.run_json("tenants", "show", "acme")["balance"]["nanousd"]
    assert balance == 1_000_000_000 - row["cost"]["nanousd"]

    up.run_json("keys", "revoke", made["id"])
    assert up.ask_until(401, key)["error"]["code"] == "invalid_api_key"


def test_a_key_is_for_its_models_alone(up: RunningUp) -> None:
    up.run_json("models", "create", "other", "--source", model)
    key = up.run_json("keys", "create", "--project", "demo/default", "--models", "other")["key"]
    assert up.ask_until(403, key)["error"]["code"] == "permission_denied"


def test_lists_are_tables_for_people(up: RunningUp) -> None:
    for words in ("tenants", "projects", "keys", "models", "deployments", "replicas", "prices"):
        ended = up.run(words, "list")
        assert ended.returncode == 0, ended.stderr
        assert len(ended.stdout.splitlines()) >= 2
        assert "hr_" not in ended.stdout
    assert "1/1" in up.run("deployments", "show", model).stdout
    assert "active" in up.run("replicas", "list").stdout


def test_bench_serve_and_the_ledger_agree_to_the_token(up: RunningUp) -> None:
    key = up.run_json("keys", "create", "--project", "demo/default", "--name", "bench")["key"]
    up.ask_until(200, key)
    before = up.run_json("usage", "--key", "bench")["total"]
    deadline_s = time.monotonic() + settled_within_s
    while before["requests"] == 0:
        assert time.monotonic() < deadline_s, "the request never reached the ledger"
        before = up.run_json("usage", "--key", "bench")["total"]
    bench = RunningUp(up.gateway_url, {**up.environment, "HEADRACE_API_KEY": key})
    sizes = ("--concurrency", "4", "--requests", "12", "--output-tokens", "8", "--warmup", "0")
    (level,) = bench.run_json("bench", "serve", up.gateway_url, "--model", model, *sizes)["levels"]
    assert level["completed"] == 12
    deadline_s = time.monotonic() + settled_within_s
    while (total := up.run_json("usage", "--key", "bench")["total"])["requests"] < (
        before["requests"] + 12
    ):
        assert time.monotonic() < deadline_s, total
    for field in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert total[field] - before[field] == level[field], field
