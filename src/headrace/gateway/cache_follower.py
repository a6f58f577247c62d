"""Follows how much the engines keep in their prefix caches, where they tell.

A gateway knows no tokens, so the hashes in an engine's events name nothing here; their number does:
blocks stored and removed are the size of what can be found there. It bounds what the router's index
believes, and a cache that was cleared is forgotten at once. Only endpoints that were used since the
last question are asked.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError
from headrace.gateway.upstream import key_headers
from headrace.http.client import HttpClient
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet

poll_interval_s = 1.0
ask_timeout_s = 2.0
asked_at_once_max = 8
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

    def __init__(self, endpoints: EndpointSet, client: HttpClient) -> None:
        self._endpoints = endpoints
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
            for endpoint in present:
                path = find_adapter(endpoint.spec.engine).facts.kv_events_path
                view = self._views.get(endpoint)
                is_new = view is None or view.leases_seen != endpoint.leases_total
                if path and endpoint.spec.accepts_requests and endpoint.leases_total and is_new:
                    questions.create_task(ask(endpoint, path))

    async def _ask(self, endpoint: Endpoint, path: str) -> None:
        view = self._views.setdefault(endpoint, CacheView())
        spec = endpoint.spec
        leases_total = endpoint.leases_total
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
        computing = endpoint.held_fresh_tokens  # not stored yet
        kept = view.blocks * told.block_size_tokens + computing
        pool.index.holds_at_most(endpoint.slot, kept)
