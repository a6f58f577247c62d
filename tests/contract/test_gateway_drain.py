"""A gateway that is told to end lets everything that it took finish, and takes nothing more."""

import asyncio
from pathlib import Path

import aiohttp

from headrace.http.server import address_of, bind, serve
from headrace.ledger.reservation import Outcome
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import gateway_site, model_name

requests_of_each_kind = 24


async def test_a_drain_fails_none_of_the_requests_that_run(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(tokens=6, gate=gate))
    async with gateway_site(tmp_path, [engine]) as site, aiohttp.ClientSession() as client:
        sock, stop = bind("127.0.0.1", 0), asyncio.Event()
        url = "http://{}:{}/v1/chat/completions".format(*address_of(sock))
        app = site.gateway.app
        serving = asyncio.create_task(
            serve(
                app,
                sock,
                drain_timeout_s=30.0,
                stop=stop,
                on_drain=app.drain,
                handles_signals=False,
            )
        )

        async def ask(stream: bool) -> tuple[int, bytes]:
            body = {
                "model": model_name,
                "messages": [{"role": "user", "content": "Hello"}],
                "stream": stream,
            }
            headers = {"Authorization": f"Bearer {site.api_key}"}
            async with client.post(url, json=body, headers=headers) as answer:
                return answer.status, await answer.read()

        asked = [asyncio.create_task(ask(n % 2 == 0)) for n in range(2 * requests_of_each_kind)]
        while True:
            await asyncio.sleep(0.005)
            if site.journal.status().running_requests == len(asked):
                break
        stop.set()
        refused = False
        while not refused:  # the listener closes within a tick of its server
            try:
                async with client.get(url.replace("/v1/chat/completions", "/readyz")) as answer:
                    assert answer.status in (200, 503)
                await asyncio.sleep(0.005)
            except aiohttp.ClientError:
                refused = True
        assert [task.result() for task in asked if task.done()] == []
        gate.set()
        answers = await asyncio.gather(*asked)
        await serving
        assert [status for status, _ in answers] == [200] * len(asked)
        assert sum(body.endswith(b"data: [DONE]\n\n") for _, body in answers) == len(asked) // 2
        settlements = await site.settlements(len(asked))
        assert [each.outcome for each in settlements] == [Outcome.FINISHED] * len(asked)
