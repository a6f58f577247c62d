"""What the gateway adds to each token of many streams at once, and what they take of its memory.

The engine stamps every token with the time at which it sends it (one clock for all processes of a
machine); a token's latency is its arrival less its stamp, a gap the time between two of a stream.
Streams straight from the engine and
through the gateway are measured in turn, and the difference is what is added.

    python bench/gateway_streams.py [--streams 200] [--tokens 100] [--interval-ms 50] [--rounds 3]
    python bench/gateway_streams.py --streams 2000 --interval-ms 500 --tokens 20 --rounds 1
"""

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp
from gateway import Contender, Pipe, cpu_s, rss_mib, run_gateway, start, url_of

from headrace.http import server
from headrace.http.asgi import EventStream, Receive, Scope, Send, read_body, send_json
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.responses import Usage
from headrace.protocol.sse import done_event
from headrace.sim.gateway_site import model_name

body_bytes_max = 1024 * 1024
golden_ratio = 0.618034
warm_up_ns = 1_500_000_000  # all streams begin at once, which is another measurement


def run_stamping_engine(pipe: Pipe, tokens: int, interval_s: float, spreads: bool) -> None:
    """An engine whose tokens are the times at which they are sent; its streams take turns."""
    begun = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/chat/completions":
            await send_json(send, 404, b"{}")
            return
        await read_body(receive, body_bytes_max)
        out = EventStream(send)
        chunks = ChunkWriter("chat", "c", 0, "fake", usage_chunk=False)
        nonlocal begun
        begun += 1
        # Spread evenly over the interval; all at once would measure how long a burst takes.
        due_s = time.monotonic() + interval_s * (begun * golden_ratio % 1 if spreads else 0.0)
        for number in range(1, tokens + 1):
            due_s += interval_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            usage = Usage.of(10, 0, number)
            await out.write(chunks.text(f"@{time.monotonic_ns()}@", usage))
        await out.close(chunks.finish("stop", Usage.of(10, 0, tokens)) + done_event)

    with server.bind("127.0.0.1", 0) as sock:
        pipe.send(url_of(sock))
        server.run(server.serve(app, sock, drain_timeout_s=1.0))


async def read_stream(
    client: aiohttp.ClientSession,
    contender: Contender,
    latencies_ms: list[float],
    gaps_ms: list[float],
) -> int:
    """Read one stream; 1 if it failed."""
    message = {"role": "user", "content": "x" * 200}
    body = {"model": contender.model, "messages": [message], "stream": True}
    headers = {"Authorization": f"Bearer {contender.api_key}"} if contender.api_key else {}
    last, last_ns = b"", 0
    from_ns = time.monotonic_ns() + warm_up_ns
    try:
        async with client.post(
            f"{contender.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            async for piece in answer.content.iter_any():
                now_ns = time.monotonic_ns()
                for stamp in piece.split(b"@")[1::2]:
                    if int(stamp) < from_ns:
                        continue
                    latencies_ms.append((now_ns - int(stamp)) / 1e6)
                    if last_ns:
                        gaps_ms.append((now_ns - last_ns) / 1e6)
                    last_ns = now_ns
                last = piece[-20:] or last
    except aiohttp.ClientError:
        return 1
    return int(b"[DONE]" not in last)


async def measure(contender: Contender, streams: int) -> None:
    """One round of one contender."""
    latencies_ms: list[float] = []
    gaps_ms: list[float] = []
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        before_s = cpu_s(contender.pid)
        reading = asyncio.gather(
            *(read_stream(client, contender, latencies_ms, gaps_ms) for _ in range(streams))
        )
        peak_mib = 0.0
        while not reading.done():
            peak_mib = max(peak_mib, rss_mib(contender.pid))
            await asyncio.wait({reading}, timeout=0.2)
        contender.note("failures", sum(reading.result()))
    for name, values in (("token", sorted(latencies_ms)), ("gap", sorted(gaps_ms))):
        for share in (50, 99):
            contender.note(f"{name}_p{share}_ms", values[len(values) * share // 100])
    contender.note("cpu_us_a_token", (cpu_s(contender.pid) - before_s) / len(latencies_ms) * 1e6)
    contender.note("rss_peak_mib", peak_mib)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--interval-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--burst", action="store_true", help="all streams' tokens at once")
    parser.add_argument("--profile", help="write the gateway's profile here")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        interval_s = arguments.interval_ms / 1000
        pid, engine_url = start(
            stack, run_stamping_engine, arguments.tokens, interval_s, not arguments.burst
        )
        engine = Contender("engine alone", engine_url, "fake", pid)
        pid, (url, api_key) = start(stack, run_gateway, engine_url, directory, arguments.profile)
        gateway = Contender("headrace", url, model_name, pid, api_key)
        for _ in range(arguments.rounds):
            for contender in (engine, gateway):
                asyncio.run(measure(contender, arguments.streams))
            for name in ("token_p50_ms", "token_p99_ms", "gap_p99_ms"):
                added_ms = gateway.results[name][-1] - engine.results[name][-1]
                gateway.note(f"added_{name}", added_ms)
    print(json.dumps({each.name: each.medians() for each in (engine, gateway)}, indent=2))


if __name__ == "__main__":
    main()
