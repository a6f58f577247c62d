"""Asks the endpoints that are nearly full how many requests wait inside them.

Idle endpoints are not asked, so that a large fleet costs nothing until it is used.
"""

import asyncio

from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.gateway.upstream import key_headers
from headrace.gateway.waiting_room import WaitingRoom
from headrace.http.client import HttpClient
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet

poll_interval_s = 0.5
saturated_poll_interval_s = 0.1  # while requests wait
ask_timeout_s = 2.0
asked_at_once_max = 16
answer_bytes_max = 4 * 1024 * 1024


class LoadFollower:
    """Keeps the capacities of an endpoint set."""

    def __init__(
        self, endpoints: EndpointSet, client: HttpClient, room: WaitingRoom, clock: Clock
    ) -> None:
        self._endpoints = endpoints
        self._client = client
        self._room = room
        self._clock = clock

    async def follow(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask_all()
            waits = not self._room.is_empty
            await asyncio.sleep(saturated_poll_interval_s if waits else poll_interval_s)

    async def ask_all(self) -> None:
        """Ask each endpoint that is nearly full once."""
        slots = asyncio.Semaphore(asked_at_once_max)

        async def ask(endpoint: Endpoint) -> None:
            async with slots:
                await self._ask(endpoint)

        async with asyncio.TaskGroup() as questions:
            for endpoint in self._endpoints:
                if endpoint.capacity.is_near(endpoint.in_flight_requests):
                    questions.create_task(ask(endpoint))

    async def _ask(self, endpoint: Endpoint) -> None:
        """Take one report; an endpoint that cannot be reached keeps its limit."""
        spec = endpoint.spec
        adapter = find_adapter(spec.engine)
        if adapter.metrics_path is None:
            endpoint.report_nothing()
            return
        try:
            answer = await self._client.fetch(
                "GET",
                spec.address + adapter.metrics_path,
                headers=key_headers(spec),
                timeout_s=ask_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return
        load = adapter.load(answer.body.decode(errors="replace"))
        if answer.status != 200 or load.running_requests is None or load.waiting_requests is None:
            endpoint.report_nothing()
            return
        endpoint.report_load(
            running=load.running_requests,
            waiting=load.waiting_requests,
            now_s=self._clock.monotonic_s(),
        )
