"""A soak of `headrace serve`: random requests and aborts, the memory of both processes watched.

    python bench/engine_soak.py MODEL [--minutes 10]

Clients send chats and completions of every kind and leave a third of them at a random moment: in
the queue, in the prompt, in the answer. Some stop reading in the middle of a stream and stay until
the server cuts them off. Each ten seconds the resident memory and the open files of the HTTP
process and of the engine process are noted. At the end nothing may be held, and neither process
may have grown by more than `growth_mb_max` since the first minute.
"""

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from headrace.sim.serve_process import ServeProcess

growth_mb_max = 16.0
sample_s = 10.0
settle_s = 60.0  # for what was cut off to be forgotten
clients = 24
silent_clients = 2  # that stop reading
silence_s = 45.0  # more than the server waits for a client that does not read
words = [f"word{number}" for number in range(40)]
expected = (200, 429, 503, 504)  # answers, a full queue, and a deadline that passed


def resident_mb(pid: int) -> float:
    """The process's resident memory (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


def open_files(pid: int) -> int:
    """How many descriptors the process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def request_of(rng: random.Random, model: str) -> tuple[str, dict[str, Any]]:
    """A path, and what is asked there."""
    shared = " ".join(words[: rng.choice([0, 20, 40])])
    text = f"{shared} {' '.join(rng.choices(words, k=rng.randint(1, 30)))}"
    fields: dict[str, Any] = {
        "model": model,
        "temperature": rng.choice([0.0, 0.8]),
        "seed": rng.randrange(2**32),
        "max_tokens": rng.randint(1, 60),
        "n": rng.choice([1, 1, 1, 3]),
        "stream": rng.random() < 0.6,
        "stop": rng.choice([None, [" the", "\n\n"]]),
        "deadline_ms": rng.choice([None, None, 500]),
    }
    if rng.random() < 0.5:
        return "/v1/completions", {**fields, "prompt": text, "logprobs": rng.choice([None, 3])}
    form = rng.choice([None, {"type": "json_object"}])
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {**fields, "messages": messages, "response_format": form}


async def one_client(
    session: aiohttp.ClientSession, number: int, model: str, counts: Counter[str], end_s: float
) -> None:
    """Requests one after the other, a third of them left at a random moment."""
    rng = random.Random(number)
    while time.monotonic() < end_s:
        counts["requests"] += 1
        path, body = request_of(rng, model)
        headers = {"x-headrace-cache-salt": rng.choice(["", "a", "b"])}
        leaves_after_s = rng.choice([None, None, rng.uniform(0.0, 1.0)])
        try:
            async with (
                asyncio.timeout(leaves_after_s),
                session.post(path, json=body, headers=headers) as answer,
            ):
                await answer.read()
        except TimeoutError:
            counts["left"] += 1
            continue
        if answer.status not in expected:
            sys.exit(f"{path} answered {answer.status}: {await answer.text()}")
        counts[f"status {answer.status}"] += 1


async def silent_client(url: str, model: str, key: str, counts: Counter[str], end_s: float) -> None:
    """Streams of which the beginning is read, then nothing until the server has cut them off.

    The prompt's log-probabilities, once for each answer, are more than the kernel's buffers take.
    """
    address = urlsplit(url)
    assert address.hostname is not None
    fields = {"max_tokens": 1, "n": 12, "echo": True, "logprobs": 20, "stream": True}
    body = json.dumps({"model": model, "prompt": " ".join(words * 8), **fields}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    while time.monotonic() + silence_s < end_s:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, (address.hostname, address.port))
            await loop.sock_sendall(sock, head.encode() + body)
            received = await loop.sock_recv(sock, 1024)
            await asyncio.sleep(silence_s)
            counts["silent"] += 1
            try:
                async with asyncio.timeout(silence_s):
                    while data := await loop.sock_recv(sock, 65_536):
                        received = received[-16:] + data
            except (ConnectionResetError, TimeoutError):
                pass
            counts["silent and cut off"] += b"[DONE]" not in received


def held(text: str) -> dict[str, float]:
    """What the server's metrics say is held, and has gone wrong."""
    names = {
        "headrace_engine_running_requests": "running",
        "headrace_engine_waiting_requests": "waiting",
        'headrace_engine_kv_blocks{state="used"}': "held_blocks",
        "headrace_engine_host_kv_blocks": "host_blocks",
        "headrace_engine_leaked_kv_blocks_total": "leaked_blocks",
        "headrace_engine_restarts_total": "restarts",
    }
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(values.get(metric, 0)) for metric, name in names.items()}


async def metrics(session: aiohttp.ClientSession) -> str:
    async with session.get("/metrics") as answer:
        return await answer.text()


async def soak(served: ServeProcess, minutes: float, key: str) -> dict[str, Any]:
    """Run it; the samples and what was left."""
    (engine,) = psutil.Process(served.process.pid).children()
    pids = {"http": served.process.pid, "engine": engine.pid}
    counts: Counter[str] = Counter()
    begin_s = time.monotonic()
    end_s = begin_s + minutes * 60
    samples: dict[str, list[float]] = {name: [] for name in pids}
    files: list[int] = []
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(served.url, connector=connector, headers=headers) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(clients):
            tasks.create_task(one_client(session, number, served.model, counts, end_s))
        for _ in range(silent_clients):
            tasks.create_task(silent_client(served.url, served.model, key, counts, end_s))
        while time.monotonic() < end_s:
            await asyncio.sleep(min(sample_s, minutes * 60 / 4))
            for name, pid in pids.items():
                samples[name].append(resident_mb(pid))
            files.append(open_files(pids["http"]))
    async with aiohttp.ClientSession(served.url, headers=headers) as session:
        left = held(await metrics(session))
        settled_s = time.monotonic() + settle_s
        while any(left.values()) and time.monotonic() < settled_s:
            await asyncio.sleep(1.0)
            left = held(await metrics(session))
    first_minute = int(len(samples["http"]) / max(minutes, 1.0))
    return {
        **counts,
        **left,
        **{f"{name}_mb": values for name, values in samples.items()},
        **{
            f"{name}_growth_mb": round(values[-1] - values[min(first_minute, len(values) - 1)], 1)
            for name, values in samples.items()
        },
        "http_files": [files[0], files[-1]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    key = "soak"
    small = ("--kv-tokens", "2048", "--max-num-seqs", "16", "--swap-tokens", "512")
    environment = {"HEADRACE_API_KEY": key}
    with ServeProcess.start(arguments.model, *small, environment=environment) as served:
        result = asyncio.run(soak(served, arguments.minutes, key))
    print(json.dumps(result))
    nothing = ("held_blocks", "host_blocks", "leaked_blocks", "running", "waiting", "restarts")
    leaks = [name for name in nothing if result[name]]
    leaks += [n for n in ("http", "engine") if result[f"{n}_growth_mb"] > growth_mb_max]
    if leaks:
        sys.exit(f"leaked: {leaks}")


if __name__ == "__main__":
    main()
