"""Follows what the engines keep in their prefix caches, where they tell.

Blocks stored and removed go to the router's exact index (`router.block_index`); their number also
bounds what is believed of prompts that it does not understand, and a cache that was cleared is
forgotten at once. Endpoints that were used since the last question are asked each time, and a few
of the others in turn, because other gateways fill them too.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.gateway.upstream import key_headers
from headrace.http.client import HttpClient
from headrace.router.block_index import BlockIndex
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet

poll_interval_s = 1.0
ask_timeout_s = 2.0
asked_at_once_max = 8
others_asked_max = 8  # each time, that were not used since
answer_bytes_max = 32 << 20  # a whole cache of some hundred thousand blocks


class KvEvent(msgspec.Struct, frozen=True):
    """One change."""

    type: Literal["stored", "removed", "cleared"]
    hashes: tuple[str, ...] = ()


class KvAnswer(msgspec.Struct, frozen=True):
    """What changed since the last question."""

    epoch: str
    next: int
    block_size_tokens: int
    reset: bool = False
    events: tuple[KvEvent, ...] = ()


@dataclass(slots=True)
class CacheView:
    """One engine's cache, counted."""

    epoch: str = ""
    since: int = 0
    blocks: int = 0
    leases_seen: int = -1  # of the endpoint, at the last question
    asked_s: float = 0.0

    def take(self, answer: KvAnswer) -> bool:
        """Count the changes; whether the cache was emptied on the way."""
        was_cleared = answer.reset and self.epoch != ""
        if answer.reset:
            self.blocks = 0
        for event in answer.events:
            match event.type:
                case "stored":
                    self.blocks += len(event.hashes)
                case "removed":
                    self.blocks = max(0, self.blocks - len(event.hashes))
                case "cleared":
                    self.blocks = 0
                    was_cleared = True
        self.epoch, self.since = answer.epoch, answer.next
        return was_cleared


class CacheFollower:
    """Keeps the prefix indexes of an endpoint set within what engines really keep."""

    def __init__(self, endpoints: EndpointSet, client: HttpClient, clock: Clock) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._client = client
        self._views: dict[Endpoint, CacheView] = {}

    async def follow(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask_all()
            await asyncio.sleep(poll_interval_s)

    async def ask_all(self) -> None:
        """Ask each endpoint that tells and was used since."""
        present = set(self._endpoints)
        self._views = {known: view for known, view in self._views.items() if known in present}
        slots = asyncio.Semaphore(asked_at_once_max)

        async def ask(endpoint: Endpoint, path: str) -> None:
            async with slots:
                await self._ask(endpoint, path)

        async with asyncio.TaskGroup() as questions:
            for endpoint in self._due(present):
                path = find_adapter(endpoint.spec.engine).facts.kv_events_path
                questions.create_task(ask(endpoint, path))

    def _due(self, present: set[Endpoint]) -> list[Endpoint]:
        """Those that were used since they were asked, and a few others."""
        used: list[Endpoint] = []
        others: list[Endpoint] = []
        for endpoint in present:
            tells = find_adapter(endpoint.spec.engine).facts.kv_events_path
            if not tells or not endpoint.spec.accepts_requests:
                continue
            view = self._views.get(endpoint)
            seen = 0 if view is None else view.leases_seen
            (others if seen == endpoint.leases_total else used).append(endpoint)
        others.sort(key=self._asked_s)
        return [*used, *others[:others_asked_max]]

    def _asked_s(self, endpoint: Endpoint) -> float:
        view = self._views.get(endpoint)
        return 0.0 if view is None else view.asked_s

    async def _ask(self, endpoint: Endpoint, path: str) -> None:
        view = self._views.setdefault(endpoint, CacheView())
        spec = endpoint.spec
        leases_total = endpoint.leases_total
        view.asked_s = self._clock.monotonic_s()
        try:
            answer = await self._client.fetch(
                "GET",
                f"{spec.address}{path}?since={view.since}&epoch={view.epoch}&wait_s=0",
                headers=key_headers(spec),
                timeout_s=ask_timeout_s,
                limit_bytes=answer_bytes_max,
            )
            if answer.status != 200:
                return
            told = msgspec.json.decode(answer.body, type=KvAnswer)
        except (HeadraceError, msgspec.DecodeError):
            return
        if endpoint.in_flight_requests == 0:
            view.leases_seen = leases_total  # what runs will still change it
        pool = self._endpoints.whole_pool(spec.pool)
        was_cleared = view.take(told)
        if pool is None:
            return
        if was_cleared:
            pool.index.forget(endpoint.slot)
            pool.blocks.forget(endpoint.slot)
        pool.blocks.block_size_tokens = told.block_size_tokens or pool.blocks.block_size_tokens
        self._tell(pool.blocks, endpoint.slot, told)
        computing = endpoint.held_fresh_tokens  # not stored yet
        kept = view.blocks * told.block_size_tokens + computing
        pool.index.holds_at_most(endpoint.slot, kept)

    def _tell(self, blocks: BlockIndex, slot: int, told: KvAnswer) -> None:
        """Pass the changes on in their order."""
        now_s = self._clock.monotonic_s()
        blocks.told(slot, (), (), now_s)
        for event in told.events:
            hashes = [bytes.fromhex(text) for text in event.hashes]
            match event.type:
                case "stored":
                    blocks.told(slot, hashes, (), now_s)
                case "removed":
                    blocks.told(slot, (), hashes, now_s)
                case "cleared":
                    blocks.forget(slot)
                    blocks.told(slot, (), (), now_s)
