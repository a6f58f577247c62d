"""Which engine gives more tokens a second over HTTP on this machine, from the same file?

Starts `headrace serve` and llama.cpp's server side by side (an idle one costs nothing), asks both
the same prompts in turns, and prints the median of the runs and their ratio. The load comes from
`headrace bench serve`, which counts tokens by each server's own usage.

    python bench/engine_vs_peers.py MODEL.gguf --peer-python PEERS/bin/python --runs 3 --json OUT

`--peer-python` is a Python with the `xllamacpp` package in an environment of its own. The peer's
wheel is built for AVX2; `--isa avx2` holds headrace to the same instructions.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

start_timeout_s = 120.0


@dataclass(frozen=True)
class Engine:
    """One server under comparison."""

    name: str
    url: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Question:
    """One row of the table."""

    name: str
    concurrency: int
    prompt_words: int
    shared_prefix_words: int
    output_tokens: int
    requests: int


questions = (
    Question("1 client, 128 in, 128 out", 1, 128, 0, 128, 3),
    Question("8 clients, 128 in, 128 out", 8, 128, 0, 128, 16),
    Question("32 clients, 128 in, 128 out", 32, 128, 0, 128, 64),
    Question("16 clients, 512 shared + 32 in, 64 out", 16, 544, 512, 64, 32),
)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(
    name: str, command: list[str], port: int, environment: dict[str, str]
) -> Iterator[Engine]:
    """Start a server, wait until it answers a completion, and stop it at the end."""
    log = Path(f"/tmp/headrace-bench-{name}.log").open("wb")  # noqa: SIM115
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(process, url, Path(log.name))
        yield Engine(name, url, process)
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


def wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Ask for one token until it comes; SystemExit with the log's end if it never does."""
    give_up_at = time.monotonic() + start_timeout_s
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            model = fetch(f"{url}/v1/models")["data"][0]["id"]
            fetch(f"{url}/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 1})
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"{process.args!r} did not start:\n{log.read_text()[-2000:]}")


def fetch(url: str, body: dict[str, object] | None = None) -> Any:
    """The JSON that a server answers; OSError if it does not."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def ask(engine: Engine, question: Question, seed: int) -> dict[str, float]:
    """One run of a question against one engine."""
    command = [
        *(sys.executable, "-m", "headrace.cli.main", "bench", "serve", engine.url, "--json"),
        *("--completions", "--ignore-eos", "--warmup", "1", "--seed", str(seed)),
        *("--concurrency", str(question.concurrency), "--requests", str(question.requests)),
        *("--prompt-words", str(question.prompt_words)),
        *("--shared-prefix", str(question.shared_prefix_words)),
        *("--output-tokens", str(question.output_tokens)),
    ]
    done = subprocess.run(command, capture_output=True, check=True, timeout=900)
    level = json.loads(done.stdout)["levels"][0]
    if level["failed"]:
        raise SystemExit(f"{engine.name}: {level['failed']} requests failed: {level['errors']}")
    return {
        "output_tokens_per_s": level["output_tokens_per_s"],
        "ttft_p50_ms": level["ttft_ms"]["p50"],
        "ttft_p99_ms": level["ttft_ms"]["p99"],
        "itl_p50_ms": level["itl_ms"]["p50"],
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the runs, with the range of the rate."""
    rates = [run["output_tokens_per_s"] for run in runs]
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return middle | {"rate_min": min(rates), "rate_max": max(rates)}


def compare(ours: Engine, peer: Engine, run_count: int) -> list[dict[str, object]]:
    """Ask every question of both engines in turns; prints a row as soon as it is known."""
    rows: list[dict[str, object]] = []
    print(f"{'output tok/s':42} {ours.name:>10} {peer.name:>12} {'ratio':>6}  TTFT p50 ms")
    for question in questions:
        results: dict[str, list[dict[str, float]]] = {ours.name: [], peer.name: []}
        for run in range(run_count):
            for engine in (ours, peer) if run % 2 == 0 else (peer, ours):
                results[engine.name].append(ask(engine, question, seed=run))
        mine, theirs = medians(results[ours.name]), medians(results[peer.name])
        ratio = mine["output_tokens_per_s"] / theirs["output_tokens_per_s"]
        print(
            f"{question.name:42} {mine['output_tokens_per_s']:10.1f} "
            f"{theirs['output_tokens_per_s']:12.1f} {ratio:6.2f}  "
            f"{mine['ttft_p50_ms']:.0f} / {theirs['ttft_p50_ms']:.0f}",
            flush=True,
        )
        rows.append({"question": question.name, ours.name: mine, peer.name: theirs, "ratio": ratio})
    return rows


def main() -> None:
    """Read the arguments, run the comparison, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", help="cap headrace's instruction set: portable, avx2, avx512")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    our_port, peer_port = free_port(), free_port()
    ours_command = [
        *(sys.executable, "-m", "headrace.cli.main", "serve", str(arguments.model)),
        *("--port", str(our_port), "--threads", str(arguments.threads)),
    ]
    peer_command = [
        *(str(arguments.peer_python), str(Path(__file__).parent / "peers" / "llama_server.py")),
        *(str(arguments.model), "--port", str(peer_port), "--threads", str(arguments.threads)),
    ]
    isa = {"HEADRACE_CPU_ISA": arguments.isa} if arguments.isa else {}
    with (
        started("headrace", ours_command, our_port, isa) as ours,
        started("llama-server", peer_command, peer_port, {}) as peer,
    ):
        rows = compare(ours, peer, arguments.runs)
    if arguments.json:
        result = {
            "model": arguments.model.name,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "isa": arguments.isa or "best",
            "runs": arguments.runs,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
