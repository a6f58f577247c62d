"""How long is a start, from the command to the first token, by what the node has already?

    python bench/cold_start.py MODEL.gguf [MODEL.gguf ...] --rounds 3 --json OUT.json

Four states of a node, each with a cache directory of its own:

    cold            nothing: the file is fetched from a server on this machine, checked and packed
    weights         the model file is in the cache; it is packed
    packed          its packed weights are beside it; they are mapped
    asleep 1, 2     the server is there and gave back its KV (1), or its engine with all memory (2);
                    it is woken and asked

A server on this machine is a network without a limit: add the file's size over your network's rate
to the first line. Rounds are interleaved. CPU time is that of the server and its engine; wall time
includes whatever else the machine does. The page cache is not emptied, as that needs root.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2 as httpx
import psutil

from headrace.sim.serve_process import ServeProcess

request_timeout_s = 600.0
operator_key = "an-operators-key-of-this-bench"


@dataclass(frozen=True)
class Start:
    """One start."""

    model: str
    state: str
    wall_s: float  # from the command, or the question, to the first token
    cpu_s: float


class Quiet(SimpleHTTPRequestHandler):
    """Serves a directory and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its base's name)
        """Say nothing."""


@contextmanager
def file_server(directory: Path) -> Iterator[str]:
    """The directory's files at a loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cpu_s(pid: int) -> float:
    """CPU time of a process and its children so far."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def first_token(url: str, model: str) -> None:
    """Return with the first token."""
    body = {"model": model, "prompt": "The mill", "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=request_timeout_s)
    answer.raise_for_status()


def start(source: str, cache: Path, *options: str) -> ServeProcess:
    """A server of the model with this cache."""
    return ServeProcess.start(
        *(source, "--cache-dir", str(cache), "--kv-tokens", "2048", *options),
        environment={"HEADRACE_OPERATOR_KEY": operator_key},
    )


def started(model: Path, state: str, source: str, cache: Path) -> Start:
    """Start once and measure; the server has ended afterwards."""
    begin_s = time.monotonic()
    served = start(source, cache)
    try:
        first_token(served.url, served.model)
        return Start(model.stem, state, time.monotonic() - begin_s, cpu_s(served.process.pid))
    finally:
        served.stop()


def woken(model: Path, source: str, cache: Path) -> list[Start]:
    """Put a server to sleep, then measure from the wish to wake it to the first token."""
    served = start(source, cache, "--admin-port", "0")
    found = re.search(r"operator is listened to at (\S+)", "\n".join(served.output))
    assert found is not None, "the server says where its operator is"
    headers = {"Authorization": f"Bearer {operator_key}"}
    with httpx.Client(base_url=found[1], headers=headers, timeout=request_timeout_s) as operator:
        try:
            first_token(served.url, served.model)
            starts = []
            for level in (1, 2):
                operator.post(f"/sleep?level={level}").raise_for_status()
                begin_s, used_s = time.monotonic(), cpu_s(served.process.pid)
                operator.post("/wake_up").raise_for_status()
                first_token(served.url, served.model)
                wall_s, used_s = time.monotonic() - begin_s, cpu_s(served.process.pid) - used_s
                starts.append(Start(model.stem, f"asleep {level}", wall_s, used_s))
            return starts
        finally:
            served.stop()


def one_round(model: Path, address: str, directory: Path) -> list[Start]:
    """Every state of the node once; the cache is that of this round alone."""
    fetched, here = directory / "fetched", directory / "here"
    return [
        started(model, "cold", address, fetched),
        started(model, "weights", str(model), here),
        started(model, "packed", str(model), here),
        *woken(model, str(model), here),
    ]


def table(starts: list[Start]) -> str:
    """Medians by model and state, and the range of the wall time, in Markdown."""
    lines = ["| model | node has | wall s | CPU s |", "|---|---|---|---|"]
    for model, state in dict.fromkeys((each.model, each.state) for each in starts):
        same = [each for each in starts if (each.model, each.state) == (model, state)]
        walls = sorted(each.wall_s for each in same)
        used_s = statistics.median(each.cpu_s for each in same)
        lines.append(
            f"| {model} | {state} | {statistics.median(walls):.2f} "
            f"({walls[0]:.2f} to {walls[-1]:.2f}) | {used_s:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    starts: list[Start] = []
    for _ in range(arguments.rounds):
        for model in arguments.models:
            with (
                tempfile.TemporaryDirectory() as directory,
                file_server(model.resolve().parent) as url,
            ):
                address = f"{url}/{model.resolve().name}"
                starts += one_round(model.resolve(), address, Path(directory))
    print(table(starts))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in starts], indent=1) + "\n")


if __name__ == "__main__":
    main()
