"""The router knows what our engine tells of its prefix cache, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs

from headrace.base.prefix_hash import block_hashes
from headrace.gateway.asked import Asked
from headrace.gateway.cache_follower import CacheFollower
from headrace.gateway.prefix_learner import PrefixLearner
from headrace.gateway.snapshot import ServedModel
from headrace.http.asgi import Receive, Scope, Send, read_body
from headrace.http.client import HttpClient
from headrace.protocol.parsing import parse_completion_request
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet, Pool
from headrace.router.prompt_prefix import prefix_of_text
from headrace.sim.clock import ManualClock
from headrace.sim.gateway_site import serving
from headrace.spec.models import Model

key = b"k" * 32
salt = "a-tenants-salt"
size = 16
text = "abcdefgh" * 512
tokens = list(range(len(text) // 4))
prefix = prefix_of_text(text.encode(), "tenant")
hashes = block_hashes(key, "m", salt, tokens, size)


class TellingEngine:
    """Tells tokens and what it keeps, as ours does."""

    def __init__(self) -> None:
        self.epoch = "one"
        self.events: list[tuple[str, list[bytes]]] = []
        self.asked: list[tuple[int, str]] = []  # since when, of which life
        self.status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/tokenize":
            assert json.loads(await read_body(receive, 1 << 20))["prompt"] == text
            answer: object = {"count": len(tokens), "tokens": tokens}
        else:
            query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
            since, epoch = int(query["since"][0]), query["epoch"][0]
            self.asked.append((since, epoch))
            is_other_life = epoch != self.epoch
            told = self.events[0 if is_other_life else since :]
            answer = {
                "epoch": self.epoch,
                "next": len(self.events),
                "block_size_tokens": size,
                "reset": is_other_life,
                "events": [
                    {"type": kind, "hashes": [each.hex() for each in blocks]}
                    for kind, blocks in told
                ],
            }
        headers = [(b"content-type", b"application/json")]
        start = {"type": "http.response.start", "status": self.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@asynccontextmanager
async def followed() -> AsyncIterator[tuple[TellingEngine, CacheFollower, Pool]]:
    """An engine, a gateway's follower of it, and the pool whose prompt has been learnt."""
    engine, clock, client = TellingEngine(), ManualClock(), HttpClient()
    endpoints = EndpointSet()
    async with serving(engine) as address:
        endpoints.update([EndpointSpec("rep_1", "ver", address, served_model_name="m")])
        pool = endpoints.whole_pool("ver")
        assert pool is not None
        follower = CacheFollower(endpoints, client, clock)
        learner = PrefixLearner(endpoints, client, clock, key)
        body = json.dumps({"model": "m", "prompt": text}).encode()
        asked = Asked("/v1/completions", body, parse_completion_request(body))
        model = Model(id="mod", name="m", create_time=0.0)
        served = ServedModel(model, (("ver", 1),), None, ())
        try:
            await follower.ask_all()
            learner.note(asked, served, prefix, salt)
            await until(lambda: learner.learnt == 1)
            yield engine, follower, pool
        finally:
            await learner.close()
            await client.close()


async def until(condition: Callable[[], bool]) -> None:
    pause = asyncio.Event()
    while not condition():  # the test's own timeout bounds it
        with suppress(TimeoutError):
            await asyncio.wait_for(pause.wait(), 0.01)


async def test_what_is_stored_and_removed_is_known_to_the_block() -> None:
    async with followed() as (engine, follower, pool):
        assert pool.blocks.held_tokens(0, prefix) == 0
        engine.events.append(("stored", list(hashes)))
        await follower.ask_all()
        # The last block is left out: the router's estimate of where a text ends may be one off.
        assert pool.blocks.held_tokens(0, prefix) == (len(hashes) - 1) * size
        engine.events.append(("removed", hashes[20:]))
        await follower.ask_all()
        held = pool.blocks.held_tokens(0, prefix)
        assert held is not None
        assert 0 < held <= 20 * size
        assert engine.asked == [(0, ""), (0, "one"), (1, "one")], "only what is new is asked for"


async def test_another_tenants_blocks_are_not_this_prompts() -> None:
    async with followed() as (engine, follower, pool):
        engine.events.append(("stored", block_hashes(key, "m", "another", tokens, size)))
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix) == 0


async def test_an_engine_that_began_anew_or_was_emptied_has_nothing() -> None:
    async with followed() as (engine, follower, pool):
        engine.events.append(("stored", list(hashes)))
        await follower.ask_all()
        engine.epoch, engine.events = "two", []
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix) == 0
        engine.events.append(("stored", list(hashes)))
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix)
        engine.events.append(("cleared", []))
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix) == 0


async def test_an_engine_that_cannot_tell_now_is_believed_as_before() -> None:
    async with followed() as (engine, follower, pool):
        engine.events.append(("stored", list(hashes)))
        await follower.ask_all()
        engine.status = 503
        engine.events.append(("cleared", []))
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix)
        engine.status = 200
        await follower.ask_all()
        assert pool.blocks.held_tokens(0, prefix) == 0
