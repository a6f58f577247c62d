"""How many tokens a prompt really has, asked of an engine where the bound by its bytes is too much.

Bytes bound the tokens of any byte-level vocabulary and cost nothing to count, but are several times
too many. Where that would refuse a request or cap its answer, or soon would, the engine is asked,
which has the model's tokenizer and template and counts long texts beside its streams. So few
requests pay for a count, and the gateway itself tokenizes nothing.
"""

import asyncio

import msgspec

from headrace.adapters.registry import all_adapters
from headrace.base.errors import HeadraceError
from headrace.gateway.admission import PromptRequest
from headrace.gateway.asked import Asked
from headrace.gateway.snapshot import ServedModel
from headrace.gateway.upstream import engine_body, key_headers
from headrace.http.client import HttpClient
from headrace.protocol.requests import CompletionRequest
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet

tokenize_path = "/tokenize"
counts_at_once_max = 8  # of one gateway
waiting_counts_max = 64  # for one of these; those beyond it keep their bound
count_timeout_s = 5.0
answer_bytes_max = 64 * 1024 * 1024  # the tokens of a long prompt, as numbers


class CountedTokens(msgspec.Struct):
    """The part of an engine's answer that counts."""

    count: int


_counted = msgspec.json.Decoder(CountedTokens)


class TokenCounter:
    """Asks engines for counts, a few at a time."""

    def __init__(self, endpoints: EndpointSet, client: HttpClient) -> None:
        self._endpoints = endpoints
        self._client = client
        self._slots = asyncio.Semaphore(counts_at_once_max)
        self._waiting_count = 0
        # Kinds of engine that do not count; APIs of others are not asked for what is not theirs.
        self._unable = {adapter.name for adapter in all_adapters if adapter.facts.is_paid}

    async def count(self, asked: Asked, served: ServedModel) -> int | None:
        """The prompt's tokens, or None if nobody can tell now."""
        spec = self._engine_for(served)
        body = None if spec is None else question(asked, spec)
        if spec is None or body is None or self._waiting_count >= waiting_counts_max:
            return None
        self._waiting_count += 1
        try:
            async with asyncio.timeout(count_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            return None
        finally:
            self._waiting_count -= 1
        try:
            return await self._ask(spec, body)
        finally:
            self._slots.release()

    async def _ask(self, spec: EndpointSpec, body: bytes) -> int | None:
        try:
            answer = await self._client.fetch(
                "POST",
                spec.address + tokenize_path,
                headers={"Content-Type": "application/json", **key_headers(spec)},
                timeout_s=count_timeout_s,
                limit_bytes=answer_bytes_max,
                body=body,
            )
            if answer.status in (404, 405):
                self._unable.add(spec.engine)
            return _counted.decode(answer.body).count if answer.status == 200 else None
        except (HeadraceError, msgspec.DecodeError):
            return None

    def _engine_for(self, served: ServedModel) -> EndpointSpec | None:
        """Any engine of the model; None if its versions may count differently."""
        if len(served.pools) != 1:
            return None
        for endpoint in self._endpoints.pool(served.pools[0][0]):
            if endpoint.spec.accepts_requests and endpoint.spec.engine not in self._unable:
                return endpoint.spec
        return None


def question(asked: Asked, spec: EndpointSpec) -> bytes | None:
    """What to ask the engine; None for a request whose bound is as good as it gets."""
    request = asked.request
    if isinstance(request, PromptRequest):
        return None
    if not isinstance(request, CompletionRequest):
        return engine_body(asked.body, spec, {}, None)
    if request.suffix or len(request.prompts) != 1 or not isinstance(request.prompts[0], str):
        return None
    return msgspec.json.encode({"model": spec.served_model_name, "prompt": request.prompts[0]})
