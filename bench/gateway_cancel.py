"""How long after its caller left a request is gone: from the engine, and from every count here.

In each phase (queued, before the first byte, mid-stream, unstreamed) a caller closes its
connection; measured until the engine's request has ended, and until the reservation, the lease and
the queue's place are free and the settlement is in the journal. One process has gateway and engine.

    python bench/gateway_cancel.py [--requests 100]
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from headrace.http import server
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

phases = ("queued", "before the first byte", "mid-stream", "unstreamed")
look_interval_s = 0.0005


def request_of(site: GatewaySite, streams: bool) -> bytes:
    message = {"role": "user", "content": "x" * 200}
    body = json.dumps({"model": model_name, "messages": [message], "stream": streams})
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.api_key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(look_interval_s)


async def open_request(site: GatewaySite, streams: bool) -> asyncio.StreamWriter:
    parts = urlsplit(site.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request_of(site, streams))
    return writer


async def leave(
    site: GatewaySite, streams: bool, arrived: Callable[[], Awaitable[None]], running: int
) -> tuple[float, float]:
    """Milliseconds until the engine is done with it, and until nothing of it is held here."""
    engine = site.engines[0]
    writer = await open_request(site, streams)
    await arrived()
    mine = engine.seen[-1]
    begun_s = time.perf_counter()
    writer.transport.abort()
    if not running:
        await mine.ended.wait()
    engine_ms = (time.perf_counter() - begun_s) * 1000
    await until(
        lambda: (
            site.journal.status().running_requests == running
            and site.gateway.room.waiting_count() == 0
            and sum(endpoint.in_flight_requests for endpoint in site.gateway.endpoints) == running
        )
    )
    return engine_ms, (time.perf_counter() - begun_s) * 1000


async def measure(phase: str, requests: int, directory: Path) -> dict[str, float]:
    slow = Behaviour(gate=asyncio.Event())
    if phase == "mid-stream":
        slow = Behaviour(tokens=9, failure=Failure.HANG, fail_after=3)
    engine = FakeEngine(default=slow)
    async with gateway_site(directory, [engine]) as site:
        running, blocker = 0, None
        found: list[tuple[float, float]] = []
        if phase == "queued":
            site.limit_places(1)
            blocker = await open_request(site, False)
            await engine.wait_for(1)
            running = 1

        async def arrived() -> None:
            count = len(found)
            if running:
                await until(lambda: site.gateway.room.waiting_count() == 1)
                return
            seen = await engine.wait_for(count + 1)
            await seen.started.wait()
            if phase == "mid-stream":
                await until(lambda: seen.completion_tokens == 3)

        while len(found) < requests:
            found.append(await leave(site, phase != "unstreamed", arrived, running))
        if blocker is not None:
            blocker.close()
    return {
        f"{name}_p{share}_ms": round(values[min(requests - 1, requests * share // 100)], 1)
        for name, values in (
            ("engine", sorted(each[0] for each in found)),
            ("all", sorted(each[1] for each in found)),
        )
        for share in (50, 99)
    }


async def main(requests: int) -> None:
    for phase in phases:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps({"phase": phase, **await measure(phase, requests, Path(directory))}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100)
    server.run(main(parser.parse_args().requests))
