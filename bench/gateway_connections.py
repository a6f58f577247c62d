"""Ten thousand connections to one gateway process, two thousand of them streaming: does it hold?

Most connections ask /livez, stay open and ask again now and then; over the others streams come at
once. With --descriptors the gateway may open so many files only, fewer than there
are connections: those beyond it wait or are cut, and the process must answer when they are gone.

    python bench/gateway_connections.py [--connections 10000] [--streams 2000] [--descriptors N]
"""

import argparse
import asyncio
import json
import resource
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

from gateway import Pipe, rss_mib, run_gateway, start
from gateway_streams import run_stamping_engine

from headrace.sim.gateway_site import model_name

opening_at_once = 200
answer_timeout_s = 120.0
ask_interval_s = 30.0
tokens = 10
interval_s = 2.0


class Client:
    """One connection."""

    def __init__(self, url: str, api_key: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        body = json.dumps(
            {
                "model": model_name,
                "messages": [{"role": "user", "content": "x" * 200}],
                "stream": True,
            }
        )
        self._stream = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def _ask(self, request: bytes, end: bytes) -> bytes:
        if self._writer is None:
            await self.open()
        assert self._writer is not None
        self._writer.write(request)
        async with asyncio.timeout(answer_timeout_s):
            return await self._reader.readuntil(end)

    async def alive(self) -> bool:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            head = await self._ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await self._reader.readexactly(length)
            return head.split(b" ")[1] == b"200"
        return False

    async def stream(self) -> str:
        """`whole`, or what went wrong."""
        try:
            answer = await self._ask(self._stream, b"\r\n0\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            return f"cut after {error.partial[:80]!r}"
        except (OSError, TimeoutError) as error:
            return type(error).__name__
        is_whole = b"[DONE]" in answer and answer.count(b"@") >= 2 * tokens
        return "whole" if is_whole else f"odd: {answer[:80]!r}"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def run_narrow_gateway(
    pipe: Pipe, engine_url: str, directory: Path, descriptors: int | None
) -> None:
    """The gateway, with so many descriptors."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors or hard, hard), hard))
    run_gateway(pipe, engine_url, directory, None)


class Crowd:
    """Connections that stay open: each asks now and then, well within the keep-alive time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(opening_at_once)
        self._over = asyncio.Event()
        self.answers: Counter[bool] = Counter()

    async def stay(self, client: Client) -> bool:
        """Open, and ask until it is over; whether every answer came."""
        async with self._slots:
            is_open = await client.alive()
        self.answers[is_open] += 1
        while is_open and not self._over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(ask_interval_s):
                    await self._over.wait()
            async with self._slots:
                is_open = await client.alive()
        return is_open

    async def all_opened(self, count: int) -> None:
        """Return once so many have asked once."""
        while True:
            if self.answers.total() >= count:
                return
            await asyncio.sleep(0.1)

    def end(self) -> None:
        self._over.set()


async def measure(
    url: str, api_key: str, pid: int, connections: int, streams: int
) -> dict[str, object]:
    """Fill the gateway with connections, stream over some more, and ask all of them again."""
    crowd = Crowd()
    idle = [Client(url, api_key) for _ in range(connections - streams)]
    found: dict[str, object] = {"rss_before_mib": round(rss_mib(pid), 1)}
    staying = asyncio.gather(*(crowd.stay(client) for client in idle))
    await crowd.all_opened(len(idle))
    found["opened"] = {str(key): count for key, count in crowd.answers.items()}
    found["rss_open_mib"] = round(rss_mib(pid), 1)
    callers = [Client(url, api_key) for _ in range(streams)]
    streaming = asyncio.gather(*(client.stream() for client in callers))
    peak_mib = 0.0
    while not streaming.done():
        peak_mib = max(peak_mib, rss_mib(pid))
        await asyncio.wait({streaming}, timeout=0.2)
    found["streams"] = Counter(streaming.result())
    found["rss_peak_mib"] = round(peak_mib, 1)
    crowd.end()
    found["answered_to_the_end"] = Counter(map(str, await staying))
    for client in (*idle, *callers):
        client.close()
    await asyncio.sleep(2.0)
    late = Client(url, api_key)
    found["answers_afterwards"] = await late.alive()
    late.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=2_000)
    parser.add_argument("--descriptors", type=int)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, engine_url = start(stack, run_stamping_engine, tokens, interval_s, True)
        pid, (url, api_key) = start(
            stack, run_narrow_gateway, engine_url, directory, arguments.descriptors
        )
        work = measure(url, api_key, pid, arguments.connections, arguments.streams)
        print(json.dumps(asyncio.run(work), indent=2))


if __name__ == "__main__":
    main()
