"""Asking an engine over its own HTTP interface: is it ready, does a token come, is it idle?

The same address, key and route as the gateway uses, so that "ready" means what a customer would
see. Every question is bounded in time and size, and no answer is an answer.
"""

from typing import Protocol

import msgspec

from headrace.adapters.protocol import EngineAdapter, EngineLoad, Readiness
from headrace.base.errors import HeadraceError
from headrace.http.client import HttpClient
from headrace.spec.deployments import Replica

readiness_timeout_s = 2.0
token_timeout_s = 60.0  # the first token of a large model on a slow machine
answer_bytes_max = 4 << 20


class Probe(Protocol):
    """What the observer asks of engines; a simulation answers in their place."""

    async def readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        """What the engine says of itself; None if it does not answer."""
        ...

    async def token_comes(self, adapter: EngineAdapter, replica: Replica) -> bool:
        """Whether the engine generates a token when asked as a customer is."""
        ...

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        """The engine's live load; all None if it does not answer."""
        ...


class EngineProbe:
    """Questions to replicas, by the adapter of their engine."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        """What the engine says of itself; None if it does not answer."""
        try:
            answer = await self._client.fetch(
                "GET",
                replica.address + adapter.readiness_path,
                headers=adapter.headers(replica.engine_key),
                timeout_s=readiness_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return None
        return adapter.readiness(answer.status, answer.body)

    async def token_comes(self, adapter: EngineAdapter, replica: Replica) -> bool:
        """Whether the engine generates a token when asked as a customer is."""
        asked = {"model": replica.served_model_name, "prompt": "Hello", "max_tokens": 1}
        try:
            answer = await self._client.fetch(
                "POST",
                adapter.url(replica.address, "/v1/completions"),
                headers={
                    **adapter.headers(replica.engine_key),
                    "Content-Type": "application/json",
                    "X-Request-Id": f"probe-{replica.id}-{replica.attempts}",
                },
                body=msgspec.json.encode(asked),
                timeout_s=token_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return False
        return answer.status == 200

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        """The engine's live load; all None if it does not answer, or tells none."""
        if adapter.metrics_path is None:
            return EngineLoad()
        try:
            answer = await self._client.fetch(
                "GET",
                replica.address + adapter.metrics_path,
                headers=adapter.headers(replica.engine_key),
                timeout_s=readiness_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return EngineLoad()
        if answer.status != 200:
            return EngineLoad()
        return adapter.load(answer.body.decode(errors="replace"))
