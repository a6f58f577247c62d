"""What a stream takes of the event loop: a fixed number of tasks, however many chunks it has."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import aiohttp

from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import gateway_site, model_name

ours = ("headrace.gateway", "headrace.http", "headrace.ledger", "headrace.router")


class TaskCounter:
    """A task factory that counts what the gateway's own code starts, by where it stands."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        frame = getattr(coroutine, "cr_frame", None)
        module = "" if frame is None else str(frame.f_globals.get("__name__"))
        if module.startswith(ours):
            self.started[f"{module}.{getattr(coroutine, '__qualname__', '')}"] += 1
        return asyncio.Task(coroutine, loop=loop, **options)


async def test_a_chunk_starts_no_task(tmp_path: Path) -> None:
    chunks = 300
    counter = TaskCounter()
    engine = FakeEngine()
    async with gateway_site(tmp_path, [engine]) as site:
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as client:

            async def stream(tokens: int) -> int:
                """How many tasks a stream of so many chunks starts."""
                engine.plan.append(Behaviour(tokens=tokens))
                before = counter.started.total()
                body = {
                    "model": model_name,
                    "messages": [{"role": "user", "content": "hi"}],
                    "stream": True,
                }
                async with client.post("/v1/chat/completions", json=body) as answer:
                    whole = await answer.read()
                assert whole.count(b"data: ") >= tokens
                return counter.started.total() - before

            await stream(1)  # opens the connections
            asyncio.get_running_loop().set_task_factory(cast(Any, counter))
            try:
                few, many = await stream(1), await stream(chunks)
            finally:
                asyncio.get_running_loop().set_task_factory(None)
    # What runs beside, as the journal's sync, starts one now and then; it knows no chunks.
    assert many - few < chunks // 2, counter.started
