"""How many requests a second does one gateway process take, and what does it add?

Starts a fake engine and a gateway as processes of their own, loads them from this one over
loopback, and prints JSON: requests a second and latency of the gateway, and of the engine alone.

Usage: python bench/gateway.py [--clients 16] [--seconds 8] [--tokens 8] [--stream] [--profile FILE]
"""

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from headrace.base.clock import SystemClock
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.http import server
from headrace.ledger.journal import Journal
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import fill_store, model_name, pepper
from headrace.storage import open_sqlite

Pipe = multiprocessing.connection.Connection
warm_up_s = 1.0


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

    async def main() -> None:
        with (directory / "access.log").open("wb") as log, server.bind("127.0.0.1", 0) as sock:
            async with Gateway(
                database, journal, GatewayConfig(pepper), SystemClock(), log
            ) as gateway:
                pipe.send((url_of(sock), api_key))
                await server.serve(gateway.app, sock, drain_timeout_s=1.0)

    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    server.run(main())
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile or "")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    journal.close()
    database.close()


async def load(
    url: str, api_key: str, model: str, clients: int, seconds: float, stream: bool
) -> dict[str, Any]:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "x" * 200}], "stream": stream}
    ).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    latencies_ms: list[float] = []
    failures = 0
    start_s = time.perf_counter()
    measure_from_s, end_s = start_s + warm_up_s, start_s + warm_up_s + seconds

    async def one_client(session: aiohttp.ClientSession) -> None:
        nonlocal failures
        while (sent_s := time.perf_counter()) < end_s:
            async with session.post(f"{url}/v1/chat/completions", data=body) as answer:
                content = await answer.read()
            ok = answer.status == 200 and (not stream or content.endswith(b"[DONE]\n\n"))
            failures += not ok
            if sent_s >= measure_from_s:
                latencies_ms.append((time.perf_counter() - sent_s) * 1000)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        await asyncio.gather(*(one_client(session) for _ in range(clients)))
    latencies_ms.sort()
    count = len(latencies_ms)
    return {
        "requests_per_s": round(count / seconds, 1),
        "p50_ms": round(latencies_ms[count // 2], 2),
        "p99_ms": round(latencies_ms[count * 99 // 100], 2),
        "failures": failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--profile", help="write the gateway's profile here")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    engine_pipe, engine_end = context.Pipe()
    engine = context.Process(target=run_engine, args=(engine_end, arguments.tokens))
    engine.start()
    engine_url = engine_pipe.recv()
    shape = (arguments.clients, arguments.seconds, arguments.stream)
    with tempfile.TemporaryDirectory() as directory:
        gateway_pipe, gateway_end = context.Pipe()
        gateway = context.Process(
            target=run_gateway,
            args=(gateway_end, engine_url, Path(directory), arguments.profile),
        )
        gateway.start()
        gateway_url, api_key = gateway_pipe.recv()
        result = {"clients": arguments.clients, "tokens": arguments.tokens}
        result |= {"stream": arguments.stream}
        result["engine"] = asyncio.run(load(engine_url, "", "fake", *shape))
        through = asyncio.run(load(gateway_url, api_key, model_name, *shape))
        stop(gateway)
        cpu_s, rss_mib = gateway_pipe.recv()
        gateway.join(20)
        requests = through["requests_per_s"] * (arguments.seconds + warm_up_s)
        through["cpu_us_per_request"] = round(cpu_s / requests * 1e6)
        through["requests_per_cpu_s"] = round(requests / cpu_s)
        through["rss_mib"] = round(rss_mib)
        result["gateway"] = through
    stop(engine)
    engine.join(10)
    print(json.dumps(result, indent=2))


def stop(process: Any) -> None:
    os.kill(process.pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
