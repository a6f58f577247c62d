"""The engines that `engine_vs_peers.py` compares: servers asked over HTTP, and libraries.

A server is loaded by `headrace bench serve`, which counts tokens by the server's own usage. A
library without a server runs in a process of its own (bench/peers/), which takes one question a
line as JSON and answers with the same figures; it is spared HTTP, detokenized streams and the load
generator, all in its favour.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.cli.loadgen.workload import Workload

start_timeout_s = 300.0
question_timeout_s = 1800
Figures = dict[str, float]  # output_tokens_per_s, ttft_p50_ms, ttft_p99_ms, itl_p50_ms


@dataclass(frozen=True)
class Question:
    """One row of the table."""

    concurrency: int
    prompt_words: int  # a token each
    shared_prefix_words: int
    output_tokens: int
    requests: int

    @property
    def name(self) -> str:
        """As the table has it."""
        clients = "1 client" if self.concurrency == 1 else f"{self.concurrency} clients"
        own = self.prompt_words - self.shared_prefix_words
        shared = f"{self.shared_prefix_words} shared + " if self.shared_prefix_words else ""
        return f"{clients}, {shared}{own} in, {self.output_tokens} out"


class Engine(Protocol):
    """One engine under comparison."""

    @property
    def name(self) -> str:
        """As the table has it."""
        ...

    def ask(self, question: Question, seed: int) -> Figures:
        """One run of a question."""
        ...


@dataclass(frozen=True)
class ServedEngine:
    """A server with OpenAI's API."""

    name: str
    url: str

    def ask(self, question: Question, seed: int) -> Figures:
        """One run by `headrace bench serve`; SystemExit if a request failed."""
        command = [
            *(sys.executable, "-m", "headrace.cli.main", "bench", "serve", self.url, "--json"),
            *("--completions", "--ignore-eos", "--warmup", "1", "--seed", str(seed)),
            *("--concurrency", str(question.concurrency), "--requests", str(question.requests)),
            *("--prompt-words", str(question.prompt_words)),
            *("--shared-prefix", str(question.shared_prefix_words)),
            *("--output-tokens", str(question.output_tokens)),
        ]
        done = subprocess.run(command, capture_output=True, check=True, timeout=question_timeout_s)
        level = json.loads(done.stdout)["levels"][0]
        if level["failed"]:
            raise SystemExit(f"{self.name}: {level['failed']} requests failed: {level['errors']}")
        return {
            "output_tokens_per_s": level["output_tokens_per_s"],
            "ttft_p50_ms": level["ttft_ms"]["p50"],
            "ttft_p99_ms": level["ttft_ms"]["p99"],
            "itl_p50_ms": level["itl_ms"]["p50"],
        }


@dataclass(frozen=True)
class LibraryEngine:
    """A process of bench/peers/ that takes questions on its standard input."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, question: Question, seed: int) -> Figures:
        """One run in the library's process, which is not warmed up twice."""
        workload = Workload(
            "any",
            question.prompt_words,
            question.shared_prefix_words,
            question.output_tokens,
            chat=False,
            seed=seed,
        )
        bodies = (workload.body("library", index) for index in range(question.requests))
        prompts = [json.loads(body)["prompt"] for body in bodies]
        asked = {
            "prompts": prompts,
            "concurrency": question.concurrency,
            "output_tokens": question.output_tokens,
        }
        return self.exchange(asked)

    def exchange(self, asked: dict[str, object] | None) -> Figures:
        """Send a line, if there is one, and read the next; SystemExit if the process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if asked is not None:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")
        figures: Figures = json.loads(line)
        return figures


@contextmanager
def served(name: str, command: list[str], environment: dict[str, str]) -> Iterator[ServedEngine]:
    """Start a server on a free port, wait until it answers a completion, and stop it at the end."""
    port = free_port()
    log = _log_path(name)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_it_answers(process, url, log)
            yield ServedEngine(name, url)
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def library(name: str, command: list[str], environment: dict[str, str]) -> Iterator[LibraryEngine]:
    """Start a library's process, wait until its model is loaded, and end it at the end."""
    log = _log_path(name)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": str(Path(__file__).parent),  # for `peers.questions`
            },
        )
        try:
            engine = LibraryEngine(name, process, log)
            engine.exchange(None)
            yield engine
        finally:
            process.kill()
            process.wait(timeout=30)


def missing_packages(python: Path, names: tuple[str, ...]) -> str | None:
    """Why that Python cannot run a peer; None if it has all that the peer needs."""
    code = (
        "import importlib.util, sys;"
        "print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    )
    try:
        found = subprocess.run(
            [str(python), "-c", code, *names], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{python} cannot be run ({error})"
    missing = found.stdout.strip()
    return f"{python} has no {missing}" if missing else None


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


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _log_path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-bench-{name.replace(' ', '-')}.log"
