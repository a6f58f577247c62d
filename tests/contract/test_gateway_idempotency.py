"""The same key twice: one request at the engine, one charge, the same answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import Unavailable
from headrace.gateway import idempotency, recording, replay_claims
from headrace.gateway.replay_claims import KeyClaims
from headrace.http.asgi import Message, Receive, Send
from headrace.ledger.reservation import Outcome
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    gateway_site,
    model_name,
)
from headrace.storage.replay_claims import Change, Claim, Take

Answer = tuple[int, bytes, str | None]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as running:
        yield running


@pytest.fixture
async def client(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def chat(client: aiohttp.ClientSession, key: str, word: str = "hi", **f: Any) -> Answer:
    body = {"model": model_name, "messages": [{"role": "user", "content": word}], **f}
    headers = {"Idempotency-Key": key}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        replayed = answer.headers.get("X-Headrace-Replayed")
        return answer.status, await answer.read(), replayed


@pytest.mark.parametrize("stream", [True, False])
async def test_a_finished_answer_is_given_again_and_charged_once(
    site: GatewaySite, client: aiohttp.ClientSession, stream: bool
) -> None:
    first = await chat(client, "k", stream=stream)
    again = await chat(client, "k", stream=stream)
    assert first[0] == again[0] == 200
    assert first[1] == again[1]
    assert (first[2], again[2]) == (None, "finished")
    await chat(client, "other", stream=stream)
    assert len(site.engines[0].seen) == len(await site.settlements(2)) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_running_request_is_joined(
    site: GatewaySite, client: aiohttp.ClientSession, stream: bool
) -> None:
    gate = asyncio.Event()
    site.engines[0].default = Behaviour(tokens=9, gate=gate)
    first = asyncio.create_task(chat(client, "k", stream=stream))
    await site.engines[0].wait_for(1)
    others = [asyncio.create_task(chat(client, "k", stream=stream)) for _ in range(3)]
    (running,) = site.gateway.replays._running.values()
    while running._listeners < 4:
        await client.get("/livez")
    gate.set()
    answers = await asyncio.gather(first, *others)
    assert len({body for _, body, _ in answers}) == 1
    assert [replayed for _, _, replayed in answers] == [None, "joined", "joined", "joined"]
    assert len(site.engines[0].seen) == len(await site.settlements(1)) == 1


async def test_a_client_that_lost_its_connection_finds_its_answer(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    gate = asyncio.Event()
    site.engines[0].default = Behaviour(gate=gate)
    lost = asyncio.create_task(chat(client, "k"))
    await site.engines[0].wait_for(1)
    lost.cancel()
    (running,) = site.gateway.replays._running.values()
    while running._listeners:
        await client.get("/livez")
    again = asyncio.create_task(chat(client, "k"))
    while not running._listeners:
        await client.get("/livez")
    gate.set()
    assert (await again)[0] == 200
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.FINISHED
    site.gateway.access_log.flush()
    assert b'"outcome":"finished"' in site.access_log.getvalue()


async def test_what_nobody_comes_back_for_is_given_up(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "unattended_s_max", 0)
    site.engines[0].default = Behaviour(gate=asyncio.Event())
    lost = asyncio.create_task(chat(client, "k"))
    seen = await site.engines[0].wait_for(1)
    lost.cancel()
    await seen.ended.wait()
    (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED


async def test_another_body_under_the_same_key_is_422(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    assert (await chat(client, "k"))[0] == 200
    status, body, _ = await chat(client, "k", "something else")
    assert status == 422
    assert b"Idempotency-Key" in body
    assert len(site.engines[0].seen) == 1


async def test_a_failed_request_is_tried_anew(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    site.engines[0].plan.append(Behaviour(failure=Failure.STATUS, status=400))
    site.engines[0].plan.append(Behaviour(failure=Failure.ERROR_EVENT, fail_after=2))
    assert (await chat(client, "k"))[0] >= 400
    _, cut, _ = await chat(client, "s", stream=True)
    assert b"error" in cut
    assert (await chat(client, "k"))[0] == 200
    _, whole, replayed = await chat(client, "s", stream=True)
    assert whole.endswith(b"[DONE]\n\n")
    assert replayed is None


async def test_the_oldest_answers_go_when_there_are_too_many(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "kept_answers_max", 2)
    for key in ("a", "b", "c"):
        await chat(client, key)
    assert [(await chat(client, key))[2] for key in ("c", "b")] == ["finished"] * 2
    assert (await chat(client, "a"))[2] == "finished"  # the store has it longer
    assert len(site.engines[0].seen) == 3


async def test_after_the_window_a_key_is_new_again(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_claims, "replay_window_s", 0)
    await chat(client, "k")
    assert (await chat(client, "k"))[2] is None
    assert len(site.engines[0].seen) == 2


async def test_an_answer_too_large_to_keep_fails_with_advice(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "recorded_bytes_max", 600)
    status, body, _ = await chat(client, "k")
    assert status == 502
    assert b"without one" in body


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9"])
async def test_an_unusable_key_is_400(client: aiohttp.ClientSession, key: str) -> None:
    assert (await chat(client, key))[0] == 400


async def test_an_answer_is_given_again_though_its_gateway_ended(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        first = await chat(client, "k")
        await site.settlements(1)
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        again = await chat(client, "k")
        other, _, _ = await chat(client, "k", "something else")
    assert (again, other, len(engine.seen)) == ((*first[:2], "finished"), 422, 1)


async def test_what_a_crash_broke_off_frees_its_key(
    site: GatewaySite, client: aiohttp.ClientSession
) -> None:
    store = site.database.replay_claims
    claims = KeyClaims(store, site.journal, SystemClock(), site.gateway.loops)
    earlier = KeyClaims(store, site.journal, SystemClock(), site.gateway.loops)
    assert await earlier.take("broken", b"", "req_broken") is None
    await claims.recover()
    assert store.unfinished(site.journal.journal_id) == []
    assert await claims.take("broken", b"", "req_again") is None
    for each in (earlier, claims):
        await each.close()


def away(*_: object) -> None:
    raise Unavailable("the database is away")


async def test_keys_hold_within_a_gateway_while_the_store_is_away(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.database.replay_claims, "write", away)
    assert [(await chat(client, "k"))[2] for _ in range(2)] == [None, "finished"]
    assert len(site.engines[0].seen) == 1


async def test_a_fault_is_500_and_logged_and_the_key_may_come_again(
    site: GatewaySite,
    client: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def faulty(*_: object) -> None:
        raise KeyError("what nobody foresaw")

    with monkeypatch.context() as broken:
        broken.setattr(site.database.replay_claims, "write", faulty)
        status, said, _ = await chat(client, "k")
    assert (status, b"its log says why" in said) == (500, True)
    assert "what nobody foresaw" in caplog.text
    assert (await chat(client, "k"))[::2] == (200, None)
    assert len(site.engines[0].seen) == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_end_that_the_store_was_not_told_of_is_found_at_the_next_use(
    site: GatewaySite,
    client: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    is_whole: bool,
) -> None:
    gate = asyncio.Event()
    failure = Failure.NONE if is_whole else Failure.STATUS
    site.engines[0].plan.append(Behaviour(gate=gate, failure=failure, status=400))
    monkeypatch.setattr(idempotency, "kept_answers_max", 0)
    with monkeypatch.context() as outage:
        first = asyncio.create_task(chat(client, "k"))
        await site.engines[0].wait_for(1)
        outage.setattr(site.database.replay_claims, "write", away)
        gate.set()
        assert (await first)[0] == (200 if is_whole else 400)
        while site.gateway.replays._running:
            await client.get("/livez")
    assert (await chat(client, "k"))[0] == 200
    assert len(site.engines[0].seen) == 2  # the answer was kept nowhere
    await site.booked(2)
    read = site.database.late_rating.read(0.0, 1e12)
    assert [bool(each.amount_nanousd) for each in read].count(True) == 1


async def test_keys_that_come_while_one_is_written_are_written_together(
    site: GatewaySite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, is_open = site.database.replay_claims, threading.Event()
    claimed: list[int] = []
    write = store.write

    def counted(changes: Sequence[Change]) -> list[Claim | None]:
        claimed.append(sum(isinstance(change, Take) for change in changes))
        is_open.wait(60.0)
        return write(changes)

    monkeypatch.setattr(store, "write", counted)
    monkeypatch.setattr(replay_claims, "write_timeout_s", 60.0)
    asked = [asyncio.create_task(chat(client, f"k{number}")) for number in range(20)]
    while len(site.gateway.replays._running) < 20 or not claimed:
        await client.get("/livez")
    is_open.set()
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
    assert sum(claimed[:2]) == 20


def connected(site: GatewaySite) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.url, headers={"Authorization": f"Bearer {site.api_key}"})


async def never_made(receive: Receive, send: Send) -> bool:
    raise AssertionError("it must not run")


async def receive() -> Message:
    return await asyncio.Event().wait()  # type: ignore[return-value]  # never


async def send(message: Message) -> None:
    raise AssertionError("nothing is sent")
