"""`Idempotency-Key` over two gateway processes and one PostgreSQL, where one dies by SIGKILL.

Whatever a client does that got no answer, it is charged for one: it asks the other gateway, or the
killed one after its restart, with the same key.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import aiohttp
import pytest

from headrace.ledger.reservation import Outcome
from headrace.sim.booked import Booked, read_settlements
from headrace.sim.engine import Behaviour, FakeEngine
from headrace.sim.gateway_site import fill_store, model_name, pepper, serving
from headrace.sim.listening_process import Process
from headrace.storage import open_postgres

pytestmark = pytest.mark.e2e
ready_timeout_s = 120.0
tokens = 6
pairs = 10


class Site:
    """Two gateways, one engine that is in this process, one database."""

    def __init__(self, directory: Path, database_url: str, engine: FakeEngine) -> None:
        self.engine = engine
        self.database_url = database_url
        self.gateways = [Process(name, directory / name) for name in ("first", "second")]
        self.api_key = ""

    async def start(self, gateway: Process) -> None:
        """Start it and wait until it serves."""
        gateway.start(
            "headrace.cli.main", "gateway", "--data-dir", str(gateway.directory),
            "--listen-fd", "{fd}", HEADRACE_DATABASE_URL=self.database_url,
        )  # fmt: skip
        async with asyncio.timeout(ready_timeout_s), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{gateway.url}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.1)

    async def ask(self, gateway: Process, key: str, *, stream: bool) -> tuple[int, bytes, str]:
        """Status, body and request id of a chat."""
        body = {
            "model": model_name,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": stream,
        }
        headers = {"authorization": f"Bearer {self.api_key}", "idempotency-key": key}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            return answer.status, await answer.read(), answer.headers["x-request-id"]

    async def booked(self) -> dict[str, Booked]:
        """End both in good order, and what the ledger has then."""
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.end, signal.SIGTERM)
        with closing(open_postgres(self.database_url)) as database:
            assert database.ledger.check() == []
            return read_settlements(database)


@pytest.fixture
async def site(tmp_path: Path, new_postgres_url: Callable[[], str]) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        engine = FakeEngine(default=Behaviour(tokens=tokens))
        engine_url = await stack.enter_async_context(serving(engine))
        site = Site(tmp_path, new_postgres_url(), engine)
        with closing(open_postgres(site.database_url)) as database:
            site.api_key = fill_store(database, [(engine_url, "")], None)
        for gateway in site.gateways:
            stack.callback(gateway.sock.close)
            stack.callback(gateway.end, signal.SIGKILL)
            (gateway.directory / "pepper").write_bytes(pepper)
        await asyncio.gather(*map(site.start, site.gateways))
        yield site


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_in_the_middle_one_retry_runs_and_is_charged(site: Site, stream: bool) -> None:
    first, second = site.gateways
    gate = asyncio.Event()
    site.engine.plan.append(Behaviour(tokens=tokens, gate=gate))
    lost = asyncio.create_task(site.ask(first, "k", stream=stream))
    seen = await site.engine.wait_for(1)
    await asyncio.to_thread(first.end, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await lost
    await seen.ended.wait()

    status, said, _ = await site.ask(second, "k", stream=stream)
    assert (status, len(site.engine.seen)) == (409, 1), said  # it may have ended well, unseen

    await site.start(first)
    status, said, answered = await site.ask(second, "k", stream=stream)
    assert status == 200, said
    status, said, _ = await site.ask(first, "k", stream=stream)
    assert (status, len(site.engine.seen)) == (409, 2), said
    assert answered.encode() in said

    booked = await site.booked()
    whole = booked.pop(answered)
    assert (whole.outcome, whole.tokens) == (Outcome.FINISHED, (seen.prompt_tokens, tokens))
    (broken,) = booked.values()  # at what the engine had done when it was cut
    assert (broken.outcome, broken.tokens) == (Outcome.FAILED, (seen.prompt_tokens, 0))


async def test_killed_after_the_answer_a_retry_is_told_what_it_was_charged_as(site: Site) -> None:
    first, second = site.gateways
    status, _, answered = await site.ask(first, "k", stream=False)
    assert status == 200
    await asyncio.to_thread(first.end, signal.SIGKILL)
    status, said, _ = await site.ask(second, "k", stream=False)
    assert status == 409
    assert answered.encode() in said
    await site.start(first)
    assert (await site.ask(first, "k", stream=False))[0] == 409
    assert list(await site.booked()) == [answered]


async def test_sent_to_both_at_once_one_runs(site: Site) -> None:
    for number in range(pairs):
        asks = (site.ask(gateway, f"k{number}", stream=False) for gateway in site.gateways)
        assert sorted([status for status, _, _ in await asyncio.gather(*asks)]) == [200, 409]
    assert len(await site.booked()) == len(site.engine.seen) == pairs
