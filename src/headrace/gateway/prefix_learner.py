"""Teaches the router which KV blocks a prompt's text ends in, off the path of its request.

One engine of the model tokenizes the prompt as it will for its answer; the block hashes follow from
the tokens and the platform's prefix key. A prompt whose beginnings are all understood, a short one,
or one that comes while others are being learnt costs nothing: the router's belief serves those.
"""

import asyncio

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.prefix_hash import block_hashes
from headrace.gateway.asked import Asked
from headrace.gateway.snapshot import ServedModel
from headrace.gateway.token_counter import question, tokenize_path
from headrace.gateway.upstream import key_headers
from headrace.http.client import HttpClient
from headrace.router.block_index import BlockIndex
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.prompt_prefix import PromptPrefix

learnt_at_once_max = 2  # each is a tokenization on an engine, and some milliseconds of hashing here
interval_s = 0.05  # between starts: at most twenty prompts a second
ask_timeout_s = 5.0
answer_bytes_max = 64 << 20  # the tokens of a long prompt, as numbers


class Tokens(msgspec.Struct):
    """The part of an engine's answer that counts."""

    tokens: list[int]
    public_count: int = 0  # of the first ones


class PrefixLearner:
    """Learns prompts, a few at a time."""

    def __init__(
        self, endpoints: EndpointSet, client: HttpClient, clock: Clock, prefix_key: bytes
    ) -> None:
        self._endpoints = endpoints
        self._client = client
        self._clock = clock
        self._prefix_key = prefix_key
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_s = 0.0
        self.learnt = 0  # prompts

    def note(self, asked: Asked, served: ServedModel, prefix: PromptPrefix, salt: str) -> None:
        """A request comes with this prompt; learn it if that is worth something and there is time.

        Adapters have other blocks and are left to belief."""
        now_s = self._clock.monotonic_s()
        if not prefix or served.adapter or len(served.pools) != 1 or now_s < self._next_s:
            return
        if len(self._tasks) >= learnt_at_once_max:
            return
        pool = self._endpoints.whole_pool(served.pools[0][0])
        if pool is None or not pool.blocks.telling or pool.blocks.is_understood(prefix):
            return
        spec = next((each.spec for each in pool.accepting), None)
        body = None if spec is None else question(asked, spec)
        if spec is None or body is None:
            return
        self._next_s = now_s + interval_s
        if find_adapter(spec.engine).facts.publishes_kv_events:
            salt = ""  # see `router.foreign_blocks`
        task = asyncio.create_task(self._learn(pool.blocks, spec, body, prefix, salt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _learn(
        self, blocks: BlockIndex, spec: EndpointSpec, body: bytes, prefix: PromptPrefix, salt: str
    ) -> None:
        try:
            answer = await self._client.fetch(
                "POST",
                spec.address + tokenize_path,
                headers={"Content-Type": "application/json", **key_headers(spec)},
                timeout_s=ask_timeout_s,
                limit_bytes=answer_bytes_max,
                body=body,
            )
            if answer.status != 200:
                return
            found = msgspec.json.decode(answer.body, type=Tokens)
        except (HeadraceError, msgspec.DecodeError):
            return
        hashes = await asyncio.to_thread(
            self._hashes, spec.served_model_name, salt, found, blocks.block_size_tokens
        )
        public_count = found.public_count
        blocks.learn(prefix, len(found.tokens), hashes, public_token_count=public_count)
        self.learnt += 1

    def _hashes(
        self, namespace: str, salt: str, found: Tokens, block_size_tokens: int
    ) -> list[bytes]:
        return block_hashes(
            self._prefix_key,
            namespace,
            salt,
            found.tokens,
            block_size_tokens,
            public_token_count=found.public_count,
        )

    async def close(self) -> None:
        """Give up what is being learnt."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
