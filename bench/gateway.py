"""What one gateway process takes of the CPU and adds to a request, beside any other routers.

A fake engine, the gateway and each peer are processes of their own over loopback; this one loads
them. Rounds are interleaved and medians are printed: requests a second of the process's own CPU
time (closed loop), and the latency that it adds to the engine's at fixed rates (open loop: a
request's time counts from when it was due). A peer is a command with {engine} and {port} in it;
its KEY is sent as a bearer key.

    python bench/gateway.py [--rounds 3] [--seconds 5] [--clients 16] [--rates 300,500] [--stream]
                            [--keys] [--peer 'NAME[:KEY]=COMMAND'] [--profile FILE]
"""

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from headrace.base.clock import SystemClock
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.gateway.pauses import shorten_pauses
from headrace.gateway.posting_process import PostingProcess
from headrace.http import server
from headrace.ledger.journal import Journal
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import fill_store, model_name, pepper
from headrace.storage import open_sqlite

Pipe = multiprocessing.connection.Connection
warm_up_requests = 200
start_timeout_s = 90.0
clock_ticks = os.sysconf("SC_CLK_TCK")


@dataclass
class Contender:
    """One process, and what each round measured."""

    name: str
    url: str
    model: str
    pid: int
    api_key: str = ""
    results: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.results.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(v), 2) for name, v in self.results.items()}


def url_of(sock: socket.socket) -> str:
    host, port = server.address_of(sock)
    return f"http://{host}:{port}"


def run_engine(pipe: Pipe, tokens: int) -> None:
    engine = FakeEngine(default=Behaviour(tokens=tokens), remembers=False)
    with server.bind("127.0.0.1", 0) as sock:
        pipe.send(url_of(sock))
        server.run(server.serve(engine, sock, drain_timeout_s=1.0))


def run_gateway(pipe: Pipe, engine_url: str, directory: Path, profile: str | None) -> None:
    database = open_sqlite(directory / "headrace.db")
    api_key = fill_store(database, [(engine_url, "")], None)
    journal = Journal(directory / "journal")
    poster = PostingProcess(directory / "headrace.db", journal.directory)

    async def main() -> None:
        with (directory / "access.log").open("wb") as log, server.bind("127.0.0.1", 0) as sock:
            async with Gateway(
                database, journal, GatewayConfig(pepper), SystemClock(), log, poster=poster
            ) as gateway:
                shorten_pauses()
                pipe.send((url_of(sock), api_key))
                await server.serve(gateway.app, sock, drain_timeout_s=1.0)

    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    server.run(main())
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile or "")
    poster.close()
    journal.close()
    database.close()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its living children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / clock_ticks + sum(cpu_s(int(c)) for c in children)


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Load:
    """Requests of one shape to one contender."""

    def __init__(
        self,
        contender: Contender,
        session: aiohttp.ClientSession,
        stream: bool,
        *,
        keys: bool = False,
    ) -> None:
        self._url = f"{contender.url}/v1/chat/completions"
        content = "x" * 200
        message = {"role": "user", "content": content}
        self._body = json.dumps(
            {"model": contender.model, "messages": [message], "stream": stream}
        ).encode()
        self._headers = {"Content-Type": "application/json"}
        if contender.api_key:
            self._headers["Authorization"] = f"Bearer {contender.api_key}"
        self._session = session
        self._stream = stream
        self._keys = keys
        self.failures = 0

    async def one(self) -> None:
        headers = self._headers
        if self._keys:
            headers = headers | {"Idempotency-Key": uuid.uuid4().hex}
        try:
            async with self._session.post(self._url, data=self._body, headers=headers) as answer:
                content = await answer.read()
            ok = answer.status == 200 and (not self._stream or b"[DONE]" in content[-20:])
        except aiohttp.ClientError:
            ok = False
        self.failures += not ok

    async def closed(self, clients: int, seconds: float) -> int:
        """How many requests so many clients finish, each sending when it was answered."""
        end_s = time.perf_counter() + seconds
        count = 0

        async def client() -> None:
            nonlocal count
            while time.perf_counter() < end_s:
                await self.one()
                count += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return count

    async def open(self, rate: float, seconds: float) -> list[float]:
        """The sorted latencies in ms of requests that are due at a fixed rate."""
        latencies_ms: list[float] = []
        start_s = time.perf_counter()

        async def due(at_s: float) -> None:
            await self.one()
            latencies_ms.append((time.perf_counter() - at_s) * 1000)

        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                at_s = start_s + number / rate
                if (wait_s := at_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(due(at_s))
        return sorted(latencies_ms)


async def measure(contender: Contender, arguments: argparse.Namespace) -> None:
    """One round of one contender."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load = Load(contender, session, arguments.stream, keys=arguments.keys)
        for _ in range(warm_up_requests // arguments.clients):
            await asyncio.gather(*(load.one() for _ in range(arguments.clients)))
        before_s = cpu_s(contender.pid)
        count = await load.closed(arguments.clients, arguments.seconds)
        contender.note("requests_per_s", count / arguments.seconds)
        contender.note("requests_per_cpu_s", count / max(0.01, cpu_s(contender.pid) - before_s))
        for rate in arguments.rates:
            latencies_ms = await load.open(rate, arguments.seconds)
            for share in (50, 99):
                index = len(latencies_ms) * share // 100
                contender.note(f"p{share}_ms_at_{rate}", latencies_ms[index])
        contender.note("failures", load.failures)
        contender.note("rss_mib", rss_mib(contender.pid))


def add_latencies(contender: Contender, engine: Contender) -> None:
    """What this round's latencies are over the engine's of the same round."""
    for name in [name for name in contender.results if name.startswith("p") and "_ms_" in name]:
        added_ms = contender.results[name][-1] - engine.results[name][-1]
        contender.note(f"added_{name}", added_ms)


def start(stack: ExitStack, target: Callable[..., None], *arguments: object) -> tuple[int, Any]:
    """Start a Python process that sends one value once it serves; its id and the value."""
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    process = context.Process(target=target, args=(end, *arguments))
    process.start()
    assert process.pid is not None

    def stop() -> None:
        os.kill(process.pid or 0, signal.SIGTERM)
        process.join(20)

    stack.callback(stop)
    return process.pid, pipe.recv()


def start_peer(stack: ExitStack, text: str, engine_url: str) -> Contender:
    """Start `NAME[:KEY]=COMMAND` and wait until it answers a request."""
    name, _, command = text.partition("=")
    name, _, api_key = name.partition(":")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = shlex.split(command.replace("{engine}", engine_url).replace("{port}", str(port)))
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    peer = Contender(name, f"http://127.0.0.1:{port}", "fake", process.pid, api_key)

    async def wait() -> None:
        async with aiohttp.ClientSession() as session:
            deadline_s = time.perf_counter() + start_timeout_s
            while time.perf_counter() < deadline_s:
                load = Load(peer, session, stream=False)
                await load.one()
                if not load.failures:
                    return
                await asyncio.sleep(0.5)
        raise SystemExit(f"{name} answers nothing: {shlex.join(argv)}")

    asyncio.run(wait())
    return peer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rates", type=lambda text: [int(r) for r in text.split(",") if r])
    parser.add_argument("--stream", action="store_true")
    parser.add_argument(
        "--keys", action="store_true", help="an Idempotency-Key of its own with each request"
    )
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--profile", help="write the gateway's profile here")
    parser.set_defaults(rates=[300, 500])
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine_pid, engine_url = start(stack, run_engine, arguments.tokens)
        engine = Contender("engine alone", engine_url, "fake", engine_pid)
        gateway_pid, (url, api_key) = start(
            stack, run_gateway, engine_url, directory, arguments.profile
        )
        gateway = Contender("headrace", url, model_name, gateway_pid, api_key)
        peers = [start_peer(stack, text, engine_url) for text in arguments.peer]
        for _ in range(arguments.rounds):
            asyncio.run(measure(engine, arguments))
            for contender in (gateway, *peers):
                asyncio.run(measure(contender, arguments))
                add_latencies(contender, engine)
    print(json.dumps({c.name: c.medians() for c in (engine, gateway, *peers)}, indent=2))


if __name__ == "__main__":
    main()
