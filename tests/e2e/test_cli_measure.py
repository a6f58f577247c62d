"""The measuring commands as real processes, with the demo model."""

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"


def run_json(*arguments: str) -> dict[str, Any]:
    """Run `headrace ARGUMENTS --json`, and return what it wrote."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    parsed = json.loads(ended.stdout)
    assert isinstance(parsed, dict)
    return parsed


def test_doctor_finds_the_kernels_that_were_built() -> None:
    report = run_json("doctor")
    assert report["kernels"]["name"] in ("portable", "avx2", "avx-vnni", "avx512-vnni")
    assert {check["status"] for check in report["checks"]} <= {"ok", "warning"}


def test_bench_engine_times_each_size() -> None:
    sizes = ("--prompts", "32", "--batches", "1,2", "--steps", "2", "--repeats", "1")
    result = run_json("bench", "engine", model, "--context-tokens", "16", *sizes)
    assert result["machine"]["memory_gbps"] > 0
    assert result["machine"]["matrix_gops"] > 0
    assert [row["prompt_tokens"] for row in result["prefill"]] == [32]
    assert [row["batch"] for row in result["decode"]] == [1, 2]
    for row in result["decode"]:
        assert row["tokens_per_s"] > 0
        assert row["bandwidth_share"] > 0


def test_bench_serve_counts_what_the_server_counts() -> None:
    with ServeProcess.start(model) as served:
        result = run_json(
            *("bench", "serve", served.url, "--concurrency", "1,3", "--requests", "3"),
            *("--prompt-tokens", "64", "--output-tokens", "8", "--ignore-eos", "--warmup", "1"),
        )
    for level in result["levels"]:
        assert (level["completed"], level["failed"], level["without_usage"]) == (3, 0, 0)
        assert level["completion_tokens"] == 3 * 8
        assert abs(level["prompt_tokens"] / 3 - 64) <= 2
        assert level["ttft_ms"]["p50"] > 0
