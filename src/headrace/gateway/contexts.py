"""Each endpoint's context length, asked of its engine once; it bounds what is reserved."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError
from headrace.gateway.upstream import key_headers
from headrace.http.client import HttpClient
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.picker import WeightedPool

poll_interval_s = 0.5
ask_timeout_s = 2.0
answer_bytes_max = 1024 * 1024
models_path = "/v1/models"


class ContextLengths:
    """What the engines said, by endpoint; unknown until they did."""

    def __init__(self, endpoints: EndpointSet, client: HttpClient) -> None:
        self._endpoints = endpoints
        self._client = client
        self._lengths: dict[Endpoint, int | None] = {}  # None: asked, and it does not say

    def longest(self, pools: Sequence[WeightedPool]) -> int | None:
        """The longest context in these pools; None while any usable endpoint's is unknown."""
        lengths: list[int] = []
        for name, _ in pools:
            for endpoint in self._endpoints.pool(name):
                if endpoint.spec.accepts_requests:
                    length = self._lengths.get(endpoint)
                    if length is None:
                        return None
                    lengths.append(length)
        return max(lengths, default=None)

    async def follow(self) -> None:
        """Ask new endpoints until cancelled."""
        while True:
            await self.ask_new()
            await asyncio.sleep(poll_interval_s)

    async def ask_new(self) -> None:
        """Ask the endpoints that take requests and were not asked; forget those that are gone."""
        present = set(self._endpoints)
        self._lengths = {known: n for known, n in self._lengths.items() if known in present}
        for endpoint in present:
            if endpoint.spec.accepts_requests and endpoint not in self._lengths:
                with suppress(HeadraceError):
                    self._lengths[endpoint] = await self._ask(endpoint.spec)

    async def _ask(self, spec: EndpointSpec) -> int | None:
        adapter = find_adapter(spec.engine)
        answer = await self._client.fetch(
            "GET",
            adapter.url(spec.address, models_path),
            headers=key_headers(spec),
            timeout_s=ask_timeout_s,
            limit_bytes=answer_bytes_max,
        )
        if answer.status != 200:
            return None
        return adapter.context_length(answer.body, spec.served_model_name)
