"""A real gateway process: replaced under load without a failure, and fed what no client sends."""

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import (
    fill_store,
    model_name,
    pepper,
    secret_of_key,
    serving,
)
from headrace.sim.listening_process import Process
from headrace.storage import open_sqlite

pytestmark = pytest.mark.e2e
clients_at_once = 16
answers_around_a_signal = 60  # before it and after it
resident_bytes_max = 200 * 1024 * 1024
streams = 1_200
streams_bytes_max = 1024 * 1024 * 1024  # as for 2,000 streams
request_body = {"model": model_name, "messages": [{"role": "user", "content": "work"}]}
engine_key = "canary-engine-key-4471"


@dataclass(slots=True)
class Load:
    """What clients got."""

    answers: int = 0
    failures: list[str] = field(default_factory=list)
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def more(self, count: int) -> None:
        """Return after so many more answers, or the first failure."""
        wanted = self.answers + count
        async with self.progress:
            await self.progress.wait_for(lambda: self.answers >= wanted or bool(self.failures))


class GatewayProcess:
    """The process, its socket held here as a supervisor holds it."""

    def __init__(self, directory: Path, engine_url: str) -> None:
        self.process = Process("gateway", directory)
        self.url = self.process.url
        (directory / "pepper").write_bytes(pepper)
        database = open_sqlite(directory / "headrace.db")
        try:
            self.api_key = fill_store(database, [(engine_url, engine_key)], None)
        finally:
            database.close()
        self.directory = directory
        self.log = directory / "log"

    def start(self) -> None:
        self.process.start(
            "headrace.cli.main", "gateway", "--data-dir", str(self.directory), "--listen-fd", "{fd}"
        )

    def end(self) -> None:
        self.process.end(signal.SIGTERM)


@asynccontextmanager
async def running(directory: Path, engine: FakeEngine) -> AsyncIterator[GatewayProcess]:
    async with serving(engine) as engine_url:
        gateway = GatewayProcess(directory, engine_url)
        gateway.start()
        try:
            await ready(gateway)
            yield gateway
        finally:
            await asyncio.to_thread(gateway.end)
            gateway.process.sock.close()


async def ready(gateway: GatewayProcess) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{gateway.url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


async def ask(gateway: GatewayProcess, load: Load, number: int) -> None:
    """One request on a connection of its own, as a new caller's."""
    body = {
        "model": model_name,
        "messages": [{"role": "user", "content": f"work {number}"}],
        "stream": number % 2 == 0,
    }
    headers = {"Authorization": f"Bearer {gateway.api_key}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            data = await answer.read()
            is_whole = data.endswith(b"data: [DONE]\n\n") or data.endswith(b"}")
            if answer.status != 200 or not is_whole:
                load.failures.append(f"{answer.status} {data[-300:]!r}")
    except aiohttp.ClientError as error:
        load.failures.append(repr(error))
    async with load.progress:
        load.answers += 1
        load.progress.notify_all()


async def test_sigterm_under_load_fails_no_request_and_the_next_process_goes_on(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with running(tmp_path, engine) as gateway:
        load, numbers = Load(), itertools.count()
        is_over = asyncio.Event()

        async def client() -> None:
            while not is_over.is_set():
                await ask(gateway, load, next(numbers))

        clients = [asyncio.create_task(client()) for _ in range(clients_at_once)]
        await load.more(answers_around_a_signal)
        await asyncio.to_thread(gateway.end)
        gateway.start()
        await load.more(answers_around_a_signal)
        is_over.set()
        await asyncio.gather(*clients)
    assert load.failures == []
    database = open_sqlite(tmp_path / "headrace.db")
    try:
        row = database.ledger.usage()[0]
        assert database.ledger.check() == []
    finally:
        database.close()
    assert (row.requests, row.finished) == (load.answers, load.answers)
    assert len({seen.request_id for seen in engine.seen}) == load.answers


async def test_a_gateway_fits_a_small_container_from_its_start(tmp_path: Path) -> None:
    """Itself and the child that posts to the ledger, when it is ready and after requests."""
    async with running(tmp_path, FakeEngine()) as gateway:
        at_start_bytes = gateway.process.resident_bytes()
        load = Load()
        await asyncio.gather(*(ask(gateway, load, number) for number in range(200)))
        after_bytes = gateway.process.resident_bytes()
    assert load.failures == []
    assert 0 < at_start_bytes < resident_bytes_max
    assert after_bytes < resident_bytes_max


def odd_requests(key: str) -> Iterator[bytes]:
    """Requests with secrets and canaries in all the wrong places."""
    auth = f"Authorization: Bearer {key}\r\nHost: x\r\n"
    chat = "POST /v1/chat/completions HTTP/1.1\r\n"
    good = json.dumps({"model": model_name, "messages": [{"role": "user", "content": "hi"}]})

    def post(body: str | bytes, head: str = auth) -> bytes:
        data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        return f"{chat}{head}Content-Length: {len(data)}\r\n\r\n".encode("latin-1") + data

    for host in (key, "localhost", "169.254.169.254", "a:b:c", "", "x\ty", "[::1", "x" * 9000):
        yield f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n\r\n".encode()
    for path in (
        f"/v1/models/{key}", f"/{key}", f"/v1/models?key={key}", f"/v1/files/{key}/content",
        "/v1/responses/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/batches/..%00/cancel", "/v1//models",
        "/v1/models/%ff%fe", "*", "//evil/v1/models", "/" + "a/" * 5000,
    ):  # fmt: skip
        yield f"GET {path} HTTP/1.1\r\n{auth}\r\n".encode()
    for name in ("Idempotency-Key", "X-Headrace-Priority", "X-Request-Timeout", "X-Request-Id"):
        for value in (key, "\xff\xfe", "9" * 5000, "nan", "-1", "a\tb"):
            yield post(good, f"{auth}{name}: {value}\r\n")
    for body in (
        key, f'"{key}"', "{" + f'"{key}":1' + "}", good[:-1], good + good, "[" * 200_000,
        '{"a":' * 100_000, good[:-1] + ',"model":"' + key + '"}', good[:-1] + ',"n":1e999}',
        good[:-1] + ',"max_tokens":' + "9" * 10_000 + "}", good[:-1] + ',"seed":-1e308}',
        good.replace("hi", "\\ud800"), good.replace("hi", "\ud800"), good[:-1] + ',"n":2,"n":"x"}',
        b"\xff\xfe" + good.encode("utf-16-le"), b"\x00" * 100, good.replace("user", key),
    ):  # fmt: skip
        yield post(body)
    chunked = f"{chat}{auth}Transfer-Encoding: chunked\r\n\r\n".encode()
    size = f"{len(good):x}"
    for chunks in (
        f"{size}\r\n{good}\r\n0\r\n\r\n", f"{size};{key}\r\n{good}\r\n0\r\n{key}: x\r\n\r\n",
        f"{size}\r\n{good}\r\n", f"{size}x\r\n{good}\r\n0\r\n\r\n", "-1\r\n\r\n", "0x10\r\n\r\n",
        f"{size}\n{good}\n0\n\n", "ffffffffffffffff\r\nx", "\r\n\r\n", "1\r\nab\r\n0\r\n\r\n",
    ):  # fmt: skip
        yield chunked + chunks.encode()


async def raw(url: str, data: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionResetError:  # cut while we still wrote
        return b""
    finally:
        writer.close()


async def test_over_a_thousand_streams_at_once_are_held_and_it_is_alive_meanwhile(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    headers, load = {}, Load()
    async with running(tmp_path, engine) as gateway:
        headers["Authorization"] = f"Bearer {gateway.api_key}"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            clients = [asyncio.create_task(stream(gateway, session, load)) for _ in range(streams)]
            await engine.wait_for(streams)
            async with session.get(f"{gateway.url}/livez") as answer:
                assert answer.status == 200
            gate.set()
            await asyncio.gather(*clients)
        assert load.failures == []
        assert load.answers == streams
        assert gateway.process.resident_bytes() < streams_bytes_max


async def stream(gateway: GatewayProcess, session: aiohttp.ClientSession, load: Load) -> None:
    """One stream of many on one client."""
    body = {**request_body, "stream": True}
    async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
        data = await answer.read()
        if answer.status != 200 or not data.endswith(b"data: [DONE]\n\n"):
            load.failures.append(f"{answer.status} {data[-300:]!r}")
    load.answers += 1


async def test_whatever_is_sent_nothing_fails_and_no_secret_is_repeated_or_kept(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(api_key=engine_key)
    async with running(tmp_path, engine) as gateway:
        answers = [await raw(gateway.url, data) for data in odd_requests(gateway.api_key)]
        statuses = [answer.split(b" ")[1] for answer in answers if answer]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{gateway.url}/metrics") as answer:
                metrics = await answer.read()
            async with session.get(f"{gateway.url}/readyz") as answer:
                assert answer.status == 200
    assert len(statuses) > len(answers) // 2
    assert not [status for status in statuses if status.startswith(b"5")]
    kept = {**kept_files(tmp_path), "metrics": metrics}
    key = gateway.api_key.encode()
    for secret in (key, secret_of_key.hex().encode(), engine_key.encode(), b"Traceback (most"):
        assert not [name for name, data in kept.items() if secret in data]
        # A model's or a path's name may be repeated to who sent it, whatever it is.
        assert secret in (key, key[-64:]) or not [each for each in answers if secret in each]


def kept_files(directory: Path) -> dict[str, bytes]:
    """Logs, journal and kept content; not the store, which has engines' keys."""
    return {
        path.name: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("pepper", "headrace.db")
    }
