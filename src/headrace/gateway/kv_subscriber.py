"""Listens to engines that publish how their prefix caches change: vLLM and SGLang, by ZeroMQ.

Each publishes at its own port plus an offset that the platform gave it. A gap in the sequence means
that something was missed: then what is known of that engine is forgotten, and built up again.
"""

import asyncio
import contextlib
import importlib
import logging
from typing import Any
from urllib.parse import urlsplit

from headrace.adapters.kv_messages import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KvMessage,
    decode_events,
    kv_events_port,
    sequence_of,
)
from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, UpstreamFailed
from headrace.base.repeated_warning import RepeatedWarning
from headrace.router.block_index import BlockIndex
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet
from headrace.router.foreign_blocks import ForeignBlocks

logger = logging.getLogger(__name__)

look_interval_s = 0.5  # between looks at which engines there are
queued_messages_max = 10_000  # of one engine, in ZeroMQ's hands; beyond it a gap shows
message_bytes_max = 64 << 20


def load_zmq() -> tuple[Any, Any]:
    """ZeroMQ and its part for asyncio; ConfigurationError names the extra that has them."""
    try:
        return importlib.import_module("zmq"), importlib.import_module("zmq.asyncio")
    except ImportError:
        raise ConfigurationError(
            "KV events of vLLM and SGLang need ZeroMQ: pip install 'headrace[kv-events]'"
        ) from None


class KvSubscriber:
    """One subscription for each engine that publishes."""

    def __init__(
        self, endpoints: EndpointSet, clock: Clock, prefix_key: bytes, port_offset: int
    ) -> None:
        """ConfigurationError if ZeroMQ is not installed."""
        self._endpoints = endpoints
        self._clock = clock
        self._prefix_key = prefix_key
        self._port_offset = port_offset
        self._zmq, self._zmq_asyncio = load_zmq()
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._malformed = RepeatedWarning(logger, clock)
        self._ended = RepeatedWarning(logger, clock)

    async def follow(self) -> None:
        """Listen to whoever there is, until cancelled."""
        context = self._zmq_asyncio.Context()
        try:
            while True:
                self._look(context)
                await asyncio.sleep(look_interval_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            context.destroy(linger=0)

    def _look(self, context: Any) -> None:
        present = {
            endpoint
            for endpoint in self._endpoints
            if endpoint.spec.accepts_requests
            and find_adapter(endpoint.spec.engine).facts.publishes_kv_events
        }
        for endpoint, task in list(self._tasks.items()):
            if endpoint not in present:
                task.cancel()
            elif task.done():
                self._ended.note(f"KV events of {endpoint.spec.id}", task.exception())
            else:
                continue
            del self._tasks[endpoint]
        for endpoint in present - self._tasks.keys():
            self._tasks[endpoint] = asyncio.create_task(self._listen(context, endpoint))

    async def _listen(self, context: Any, endpoint: Endpoint) -> None:
        parts = urlsplit(endpoint.spec.address)
        host = parts.hostname or ""
        port = kv_events_port(parts.port or 80, self._port_offset)
        address = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
        blocks = ForeignBlocks(self._prefix_key, endpoint.spec.served_model_name)
        with contextlib.closing(context.socket(self._zmq.SUB)) as sock:
            sock.setsockopt(self._zmq.RCVHWM, queued_messages_max)
            sock.setsockopt(self._zmq.MAXMSGSIZE, message_bytes_max)
            sock.setsockopt(self._zmq.LINGER, 0)
            sock.setsockopt(self._zmq.IPV6, int(":" in host))
            sock.connect(address)
            sock.setsockopt(self._zmq.SUBSCRIBE, b"")
            following: int | None = None
            while True:
                frames = await sock.recv_multipart()
                try:
                    _, number, payload = frames
                    sequence = sequence_of(number)
                    events = decode_events(payload)
                except (ValueError, UpstreamFailed) as error:
                    self._malformed.note(address, error)
                    continue
                if following is not None and sequence != following:
                    self._forget(endpoint, blocks)
                following = sequence + 1
                for event in events:
                    self._take(endpoint, blocks, event)

    def _index_of(self, endpoint: Endpoint) -> BlockIndex | None:
        pool = self._endpoints.whole_pool(endpoint.spec.pool)
        return None if pool is None or endpoint not in pool.members else pool.blocks

    def _forget(self, endpoint: Endpoint, blocks: ForeignBlocks) -> None:
        blocks.forget()
        index = self._index_of(endpoint)
        if index is not None:
            index.forget(endpoint.slot)
            index.told(endpoint.slot, (), (), self._clock.monotonic_s())

    def _take(self, endpoint: Endpoint, blocks: ForeignBlocks, event: KvMessage) -> None:
        index = self._index_of(endpoint)
        if index is None:
            return
        now_s = self._clock.monotonic_s()
        match event:
            case BlocksStored(hashes, parent, token_ids, size, has_adapter):
                index.block_size_tokens = size
                ours = [] if has_adapter else blocks.stored(hashes, parent, token_ids, size)
                index.told(endpoint.slot, ours, (), now_s)
            case BlocksRemoved(hashes):
                index.told(endpoint.slot, (), blocks.removed(hashes), now_s)
            case BlocksCleared():
                self._forget(endpoint, blocks)
