"""One key at two gateways over one database: one answer for both, one charge, whatever dies."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import Unavailable
from headrace.gateway import heartbeat, joining, kept_answer, recording, replay_claims
from headrace.gateway.idempotency import ReplayKey, fingerprint_of
from headrace.gateway.replay_claims import digest_of
from headrace.ledger.reservation import Outcome
from headrace.protocol.sse import heartbeat as comment
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name
from headrace.spec.deployments import Replica
from headrace.storage import open_postgres
from headrace.storage.replay_claims import Change, Claim, Release, Take

path = "/v1/chat/completions"


class Answer(NamedTuple):
    status: int
    body: bytes
    replayed: str | None
    request_id: str

    @property
    def how(self) -> str | None:
        """Whose answer it is, by a header or by a comment where the headers went before."""
        said = self.body.partition(b": x-headrace-replayed: ")[2].partition(b"\n")[0]
        return self.replayed or said.decode() or None

    @property
    def events(self) -> bytes:
        """The body without what was said while it was waited for."""
        blocks = self.body.split(b"\n\n")
        return b"\n\n".join(each for each in blocks if not each.startswith(b":"))


class Client:
    """One caller at one gateway."""

    def __init__(self, site: GatewaySite, session: aiohttp.ClientSession) -> None:
        self.site, self._session = site, session

    async def ask(
        self, key: str = "k", word: str = "hi", limit_s: str | None = None, **fields: Any
    ) -> Answer:
        body = {"model": model_name, "messages": [{"role": "user", "content": word}], **fields}
        headers = {"Idempotency-Key": key, **({"X-Request-Timeout": limit_s} if limit_s else {})}
        async with self._session.post(path, json=body, headers=headers) as answer:
            replayed = answer.headers.get("X-Headrace-Replayed")
            request_id = answer.headers["X-Request-Id"]
            return Answer(answer.status, await answer.read(), replayed, request_id)

    def asking(self, **fields: Any) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.ask(**fields))

    async def waits(self, count: int = 1) -> None:
        """Return once so many requests of this gateway wait for another one's."""
        await until(lambda: self.site.gateway.replays._joining._waiting == count)

    async def is_idle(self) -> None:
        """Return once nothing with a key runs at this gateway."""
        await until(lambda: not self.site.gateway.replays._running)


async def until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    async with asyncio.timeout(60.0):
        while True:
            await asyncio.sleep(0.005)
            if condition():
                return


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def clients(
    tmp_path: Path, new_postgres_url: Callable[[], str], engine: FakeEngine
) -> AsyncIterator[tuple[Client, Client]]:
    """One caller at two gateways."""
    open_store = partial(open_postgres, new_postgres_url())
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with (
        gateway_site(tmp_path / "first", [engine], open_store=open_store) as first,
        gateway_site(
            tmp_path / "second",
            [],
            addresses=[first.database.store.list(Replica)[0].address or ""],
            open_store=open_store,
        ) as second,
        connected(first) as one,
        connected(second) as other,
    ):
        yield Client(first, one), Client(second, other)


def connected(site: GatewaySite) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.url, headers={"Authorization": f"Bearer {site.api_key}"})


async def charged(site: GatewaySite, count: int) -> dict[str, int]:
    """What the one tenant paid for the requests of the ledger, once there are so many."""
    await site.booked(count)
    assert site.database.ledger.settlement_count() == count
    assert site.database.ledger.check() == []
    read = site.database.late_rating.read(0.0, 1e12)
    return {each.request_id: each.amount_nanousd or 0 for each in read}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_runs_elsewhere_is_waited_for_and_its_answer_given(
    clients: tuple[Client, Client], engine: FakeEngine, stream: bool
) -> None:
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(tokens=9, gate=gate)
    running = first.asking(stream=stream)
    await engine.wait_for(1)
    waiting = [second.asking(stream=stream) for _ in range(3)]  # one waits, two join it
    await second.waits()
    assert not any(each.done() for each in waiting)
    gate.set()
    answer = await running
    for each in await asyncio.gather(*waiting):
        assert (each.status, each.events, each.how) == (200, answer.events, "joined")
    again = await second.ask(stream=stream)
    assert (again.events, again.replayed) == (answer.events, "finished")
    assert len(engine.seen) == 1
    assert list(await charged(first.site, 1)) == [answer.request_id]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_another_gateway_answered_is_given_again(
    clients: tuple[Client, Client], engine: FakeEngine, stream: bool
) -> None:
    first, second = clients
    answer = await first.ask(stream=stream)
    await first.is_idle()
    again = await second.ask(stream=stream)
    assert again == answer._replace(replayed="finished")
    assert len(engine.seen) == 1


async def test_a_stream_that_waits_has_its_headers_and_comments_and_then_the_answer(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "interval_s", 0.02)
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(tokens=9, gate=gate)
    running = first.asking(stream=True)
    await engine.wait_for(1)
    body = {"model": model_name, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with second._session.post(path, json=body, headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == 200
        for _ in range(3):
            assert await answer.content.readuntil(b"\n\n") == comment
        gate.set()
        rest = await answer.content.read()
    whole = await running
    events = b"\n\n".join(each for each in rest.split(b"\n\n") if not each.startswith(b":"))
    assert events == whole.events
    assert b": x-headrace-replayed: joined" in rest
    assert b": x-request-id: " + whole.request_id.encode() in rest


@pytest.mark.parametrize("stream", [False, True])
async def test_what_failed_elsewhere_is_run_by_one_of_those_that_waited(
    clients: tuple[Client, Client], engine: FakeEngine, stream: bool
) -> None:
    first, second = clients
    gate = asyncio.Event()
    engine.plan.append(Behaviour(gate=gate, failure=Failure.CUT))
    running = first.asking(stream=stream)
    await engine.wait_for(1)
    waiting = second.asking(stream=stream)
    await second.waits()
    gate.set()
    assert b"upstream_failed" in (await running).body
    answer = await waiting
    assert (answer.status, answer.how, len(engine.seen)) == (200, None, 2)
    assert b"error" not in answer.body
    paid = await charged(first.site, 2)
    assert [amount for amount in paid.values() if amount] == [paid[engine.seen[1].request_id]]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_waits_for_a_gateway_that_died_runs_the_request(
    clients: tuple[Client, Client],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    """Its claim is there and is not renewed; two wait, and one of them runs it for both."""
    monkeypatch.setattr(replay_claims, "lease_s", 3.0)
    first, second = clients
    store = first.site.database.replay_claims
    claimed = await claim_by_another(first, stream=stream)
    waiting = [first.asking(stream=stream), second.asking(stream=stream)]
    await asyncio.gather(first.waits(), second.waits())
    (standing,) = store.standing([claimed.digest])
    assert standing is not None
    assert (standing.request_id, standing.gateway_id) == ("req_gone", "gone")
    assert standing.left_s <= 3.0
    answers = await asyncio.gather(*waiting)
    assert [each.status for each in answers] == [200, 200]
    assert answers[0].events == answers[1].events
    assert len(engine.seen) == 1


async def claim_by_another(client: Client, *, stream: bool) -> Take:
    """Claim the key `k` for a gateway that does nothing any more."""
    seen: list[bytes] = []
    store = client.site.database.replay_claims
    digest = digest_of(*ReplayKey(make_id("key", 1), "k"))
    body = aiohttp.JsonPayload(
        {
            "model": model_name,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": stream,
        }
    )
    seen.append(body.decode().encode())
    fingerprint = fingerprint_of(path, seen[0]).hex()
    take = Take(digest, fingerprint, "req_gone", "gone", lease_s=3.0)
    assert await asyncio.to_thread(store.write, [take]) == [None]
    return take


@pytest.mark.parametrize("faults", [0, 1])
async def test_a_claim_of_what_runs_long_is_renewed(
    clients: tuple[Client, Client],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    faults: int,
) -> None:
    """Also after a fault that nobody foresaw, which is told of."""
    monkeypatch.setattr(replay_claims, "renew_interval_s", 0.01)
    first, _ = clients
    gate = asyncio.Event()
    engine.default = Behaviour(gate=gate)
    running = first.asking()
    await engine.wait_for(1)
    store = first.site.database.replay_claims
    digests = [digest_of(*ReplayKey(make_id("key", 1), "k"))]
    (begun,) = await asyncio.to_thread(store.standing, digests)
    assert begun is not None
    write, left = store.write, [KeyError("what nobody foresaw")] * faults

    def faulty(changes: Sequence[Change]) -> list[Claim | None]:
        if left:
            raise left.pop()
        return write(changes)

    monkeypatch.setattr(store, "write", faulty)
    while True:
        (standing,) = await asyncio.to_thread(store.standing, digests)
        assert standing is not None
        if standing.left_s > begun.left_s and not left:
            break
    gate.set()
    assert (await running).status == 200
    assert first.site.gateway.loops.totals()[replay_claims.renewals_loop] == faults


async def test_who_leaves_while_it_waits_leaves_nothing(
    clients: tuple[Client, Client], engine: FakeEngine
) -> None:
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(gate=gate)
    running = first.asking()
    await engine.wait_for(1)
    waiting = second.asking()
    await second.waits()
    waiting.cancel()
    await second.is_idle()
    await second.waits(0)
    gate.set()
    assert (await running).status == 200
    assert len(engine.seen) == len(await charged(first.site, 1)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wait_ends_at_the_deadline_of_its_request(
    clients: tuple[Client, Client],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(gate=gate)
    running = first.asking(stream=stream)
    await engine.wait_for(1)
    late = await second.ask(stream=stream, limit_s="1.5")
    if stream:  # its headers were out by then
        assert late.status == 200
        assert late.body.startswith(comment)
        assert b"X-Request-Timeout" in late.events
        assert b"[DONE]" not in late.events
    else:
        assert (late.status, b"X-Request-Timeout" in late.body) == (504, True)
    gate.set()
    assert (await running).status == 200
    assert len(await charged(first.site, 1)) == 1


async def test_another_body_is_refused_also_while_the_first_runs_elsewhere(
    clients: tuple[Client, Client], engine: FakeEngine
) -> None:
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(gate=gate)
    running = first.asking()
    await engine.wait_for(1)
    assert (await second.ask(word="something else")).status == 422
    gate.set()
    assert (await running).status == 200
    assert (await second.ask(word="something else")).status == 422


async def test_no_more_wait_than_there_is_room_for(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "joining_max", 1)
    first, second = clients
    gate = asyncio.Event()
    engine.default = Behaviour(gate=gate)
    running = [first.asking(key=key) for key in ("a", "b")]
    await engine.wait_for(2)
    waiting = second.asking(key="a")
    await second.waits()
    refused = await second.ask(key="b")
    assert (refused.status, b"Idempotency-Key" in refused.body) == (503, True)
    gate.set()
    assert [each.status for each in await asyncio.gather(*running, waiting)] == [200] * 3


async def test_who_waits_while_the_store_is_away_runs_the_request_when_the_claim_is_over(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run it in the end, and one of both answers is charged."""
    monkeypatch.setattr(replay_claims, "lease_s", 2.0)
    first, second = clients
    gate = asyncio.Event()
    engine.plan.append(Behaviour(gate=gate))
    running = first.asking()
    await engine.wait_for(1)
    waiting = second.asking()
    await second.waits()
    for name in ("write", "standing"):
        for client in clients:
            monkeypatch.setattr(client.site.database.replay_claims, name, away)
    assert (await waiting).status == 200
    gate.set()
    assert (await running).status == 200
    paid = await charged(first.site, 2)
    assert sorted(amount > 0 for amount in paid.values()) == [False, True]


def away(*_: object) -> None:
    raise Unavailable("the database is away")


async def test_an_answer_that_is_too_large_to_keep_is_named_and_not_run_again(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answer, "kept_answer_bytes_max", 10)
    first, second = clients
    answer = await first.ask()
    await first.is_idle()
    refused = await second.ask()
    assert refused.status == 409
    assert answer.request_id.encode() in refused.body
    assert len(engine.seen) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_answer_is_given_again_by_another_gateway(
    clients: tuple[Client, Client],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    """It is written before its claim says that it ended, apart from what others wait for."""
    monkeypatch.setattr(replay_claims, "answer_bytes_together_max", 10)
    first, second = clients
    answer = await first.ask(stream=stream)
    await first.is_idle()
    assert await second.ask(stream=stream) == answer._replace(replayed="finished")
    assert len(engine.seen) == 1


@pytest.mark.parametrize("off_s", [-40.0, 40.0, 3600.0])
async def test_a_gateway_whose_clock_is_wrong_waits_for_what_another_runs(
    clients: tuple[Client, Client],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    off_s: float,
) -> None:
    """Neither does it take a claim over that stands, nor forget what others keep."""
    first, second = clients
    ended = await first.ask(key="before")
    await first.is_idle()
    gate = asyncio.Event()
    engine.default = Behaviour(tokens=9, gate=gate)
    running = first.asking()
    await engine.wait_for(2)
    monkeypatch.setattr(SystemClock, "wall_s", lambda _: time.time() + off_s)
    waiting = second.asking()
    await second.waits()
    gate.set()
    assert (await waiting).events == (await running).events
    assert await second.ask(key="before") == ended._replace(replayed="finished")
    await second.ask(key="other")
    assert await second.ask(key="before") == ended._replace(replayed="finished")
    assert len(engine.seen) == 3


async def test_what_the_engine_broke_under_a_key_is_paid_by_the_platform(
    clients: tuple[Client, Client], engine: FakeEngine
) -> None:
    first, second = clients
    engine.plan.append(Behaviour(tokens=9, failure=Failure.CUT, fail_after=5))
    broken = await first.ask(stream=True)
    assert b"[DONE]" not in broken.body
    await first.is_idle()
    whole = await second.ask(stream=True)
    other = await second.ask(key="other", stream=True)
    paid = await charged(first.site, 3)
    assert paid[broken.request_id] == 0
    assert paid[whole.request_id] == paid[other.request_id] > 0


async def test_what_its_caller_left_is_paid_and_paid_again_when_it_is_wanted_again(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "unattended_s_max", 0.0)
    first, _ = clients
    engine.plan.append(Behaviour(tokens=9, failure=Failure.HANG, fail_after=5))
    left = first.asking(stream=True)
    seen = await engine.wait_for(1)
    await until(lambda: seen.completion_tokens == 5)
    left.cancel()
    await first.is_idle()
    whole = await first.ask(stream=True)
    paid = await charged(first.site, 2)
    assert paid[seen.request_id] > 0
    assert paid[whole.request_id] > 0


async def test_an_answer_too_large_to_record_is_paid_as_far_as_it_went_out(
    clients: tuple[Client, Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise whoever asks for much under a key had nearly all of it for nothing."""
    monkeypatch.setattr(recording, "recorded_bytes_max", 10_000)
    first, _ = clients
    engine.default = Behaviour(tokens=90)
    cut = await first.ask(stream=True)
    assert b"without one" in cut.body
    assert b"[DONE]" not in cut.body
    paid = await charged(first.site, 1)
    assert paid[cut.request_id] > 0
    (settled,) = await first.site.settlements(1)
    assert settled.outcome is Outcome.ABORTED


async def test_what_a_gateway_ends_as_it_closes_is_paid_by_the_platform(
    clients: tuple[Client, Client], engine: FakeEngine
) -> None:
    first, second = clients
    engine.plan.append(Behaviour(tokens=9, failure=Failure.HANG, fail_after=5))
    left = first.asking(stream=True)
    seen = await engine.wait_for(1)
    await until(lambda: seen.completion_tokens == 5)
    left.cancel()
    await first.site.gateway.replays.close()
    assert (await second.ask(stream=True)).status == 200
    paid = await charged(first.site, 2)
    assert paid[seen.request_id] == 0
    assert sum(amount > 0 for amount in paid.values()) == 1


async def test_a_release_of_what_was_taken_over_frees_nothing(
    clients: tuple[Client, Client],
) -> None:
    first, _ = clients
    claimed = await claim_by_another(first, stream=False)
    store = first.site.database.replay_claims
    await asyncio.to_thread(store.write, [Release(claimed.digest, "req_before")])
    (standing,) = await asyncio.to_thread(store.standing, [claimed.digest])
    assert standing is not None
    assert standing.request_id == claimed.request_id
