"""The router knows what a publisher of vLLM's and SGLang's KV events said, over a real ZeroMQ."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from headrace.adapters.kv_messages import kv_events_port, publisher_config
from headrace.adapters.protocol import LaunchRequest
from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock, SystemClock
from headrace.base.prefix_hash import block_hashes
from headrace.gateway.kv_subscriber import KvSubscriber
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet, Pool
from headrace.router.prompt_prefix import prefix_of_text
from headrace.sim.clock import ManualClock

zmq = pytest.importorskip("zmq", reason="pyzmq is missing")
zmq_asyncio = pytest.importorskip("zmq.asyncio", reason="pyzmq is missing")

key = b"k" * 32
size = 16
offset = 7
text = b"abcdefgh" * 256
tokens = [text[i] for i in range(0, len(text), 4)]
prefix = prefix_of_text(text, "tenant")


stored_names = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")


class Publisher:
    """An engine's side: what vLLM and SGLang write, number by number."""

    def __init__(self, sock: Any, *, names_fields: bool = False) -> None:
        self._sock = sock
        self._names_fields = names_fields
        self.sequence = 0

    async def send(self, frames: list[bytes]) -> None:
        await self._sock.send_multipart(frames)

    async def publish(self, *events: list[object]) -> None:
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        if self._names_fields:
            named = [dict(zip(stored_names, event, strict=False)) for event in events]
            payload = msgspec.msgpack.encode({"ts": time.time(), "events": named})
        number = self.sequence.to_bytes(8, "big")
        await self._sock.send_multipart([b"kv-events", number, payload])
        self.sequence += 1

    def stored(self, first: int, count: int, parent: object) -> list[object]:
        part = tokens[first * size : (first + count) * size]
        hashes = [1000 + first + position for position in range(count)]
        return ["BlockStored", hashes, parent, part, size, None, "GPU"]


def open_as_engines_do(sock: Any, engine: str) -> int:
    """Open a publisher's socket where its engine's command line says; the port."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        request = LaunchRequest("/m", "m", "127.0.0.1", port - offset, "key", kv_events_port=port)
        argv = find_adapter(engine).command(request).argv
        told = msgspec.json.decode(argv[argv.index("--kv-events-config") + 1])
        assert told["enable_kv_cache_events"]
        assert told["publisher"] == "zmq"
        where = told["endpoint"]
        assert "*" in where or "::" in where, "to any other address they connect"
        try:
            sock.bind(where)
        except zmq.ZMQError:
            continue  # somebody took the port in between
        return port


@asynccontextmanager
async def followed(
    engine: str = "vllm", *, names_fields: bool = False, clock: Clock | None = None
) -> AsyncIterator[tuple[Publisher, Pool]]:
    """A publisher, and the pool of a gateway that listens to it."""
    context = zmq_asyncio.Context()
    sock = context.socket(zmq.XPUB)  # XPUB: it learns when somebody subscribed
    port = open_as_engines_do(sock, engine)
    endpoints = EndpointSet()
    endpoints.update(
        [
            EndpointSpec(
                "rep_1",
                "ver",
                f"http://127.0.0.1:{port - offset}",
                engine=engine,
                served_model_name="m",
            )
        ]
    )
    pool = endpoints.whole_pool("ver")
    assert pool is not None
    pool.blocks.block_size_tokens = size
    pool.blocks.learn(prefix, len(tokens), block_hashes(key, "m", "", tokens, size))
    subscriber = KvSubscriber(endpoints, clock or SystemClock(), key, offset)
    follower = asyncio.create_task(subscriber.follow())
    try:
        assert await sock.recv() == b"\x01"
        yield Publisher(sock, names_fields=names_fields), pool
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        context.destroy(linger=0)


async def until(condition: Callable[[], bool]) -> None:
    pause = asyncio.Event()
    while not condition():  # the test's own timeout bounds it
        with suppress(TimeoutError):
            await asyncio.wait_for(pause.wait(), 0.01)


@pytest.mark.parametrize("names_fields", [False, True], ids=["by place", "by name"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_stored_removed_and_cleared_blocks_are_known(
    engine: str, *, names_fields: bool
) -> None:
    async with followed(engine, names_fields=names_fields) as (publisher, pool):
        await publisher.publish(publisher.stored(0, 20, None), publisher.stored(20, 12, 1019))
        await until(lambda: pool.blocks.held_tokens(0, prefix) == (len(tokens) // size - 1) * size)
        await publisher.publish(["BlockRemoved", [1014], "GPU"], ["SomethingNew", 1])
        await until(lambda: pool.blocks.held_tokens(0, prefix) == 7 * size)
        await publisher.publish(["AllBlocksCleared"])
        await until(lambda: pool.blocks.held_tokens(0, prefix) == 0)


async def test_after_a_gap_nothing_is_believed_that_may_be_gone() -> None:
    async with followed() as (publisher, pool):
        await publisher.publish(publisher.stored(0, 32, None))
        await until(lambda: bool(pool.blocks.held_tokens(0, prefix)))
        publisher.sequence += 1
        await publisher.publish(publisher.stored(8, 8, 1007))  # its parent is not known any more
        await until(lambda: pool.blocks.held_tokens(0, prefix) == 0)


async def test_what_is_no_message_is_passed_over_and_told_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with followed(clock=ManualClock()) as (publisher, pool):
        await publisher.send([b"kv-events", b"short", b"\xff"])
        await publisher.send([b"kv-events"])
        for strange in ({"events": [{"kind": 1}]}, {"ts": 1}, [1.0], 7, [1.0, [{"type": []}]]):
            frames = [b"kv-events", bytes(8), msgspec.msgpack.encode(strange)]
            await publisher.send(frames)
        await publisher.publish(publisher.stored(0, 32, None))
        await until(lambda: bool(pool.blocks.held_tokens(0, prefix)))
    assert [record.name for record in caplog.records] == ["headrace.gateway.kv_subscriber"]


def test_ports_wrap_downwards() -> None:
    assert kv_events_port(8000, 10_000) == 18_000
    assert kv_events_port(60_000, 10_000) == 50_000
    assert kv_events_port(8000, 0) is None


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("10.0.0.7", "[::ffff:10.0.0.7]"),
        ("127.0.0.1", "[::ffff:127.0.0.1]"),
        ("0.0.0.0", "*"),
        ("localhost", "[::ffff:127.0.0.1]"),
        ("node-7", "*"),
    ],
)
def test_an_engine_is_told_to_publish_where_it_listens(host: str, bound: str) -> None:
    request = LaunchRequest("/m", "m", host, 8000, "key", kv_events_port=18_000)
    assert msgspec.json.decode(publisher_config(request) or b"") == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{bound}:18000",
    }
    over_ipv6 = LaunchRequest("/m", "m", "fd00::7", 8000, "key", kv_events_port=18_000)
    assert publisher_config(over_ipv6) is None
    silent = LaunchRequest("/m", "m", host, 8000, "key")
    assert publisher_config(silent) is None
