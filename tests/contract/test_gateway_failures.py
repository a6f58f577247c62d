"""Clients that leave, engines that break: what is retried, what is settled, what is given back."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ContextLengthExceeded, RequestAborted, Unavailable
from headrace.gateway.forwarding import Timeouts
from headrace.gateway.prefix_learner import PrefixLearner
from headrace.http.asgi import Message
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.protocol.errors import error_body
from headrace.router.breaker import BreakerState, failed_in_row_max
from headrace.router.retry_budget import reserve_retries
from headrace.sim.disk import BoundedDisk
from headrace.sim.engine import Behaviour, Failure, FakeEngine, Seen
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, price
from headrace.spec.prices import PriceVersion
from headrace.spec.settlements import platform_tenant_id
from headrace.storage import open_sqlite

messages = [{"role": "user", "content": "Hello there"}]
Fields = dict[str, Any]


@asynccontextmanager
async def connected(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        yield session


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": messages, **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


def closed_port() -> str:
    """An address where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def start_and_leave(
    site: GatewaySite, fields: Fields, ready: Callable[[Seen], Awaitable[object]]
) -> Seen:
    """Send a request, close the client's connection once `ready`, and wait for the engine."""
    async with connected(site) as client:
        task = asyncio.create_task(chat(client, **fields))
        seen = await site.engines[0].wait_for(1)
        await ready(seen)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await seen.ended.wait()
    return seen


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_byte_stops_the_engine_and_settles_its_count(
    tmp_path: Path, stream: bool
) -> None:
    engine = FakeEngine(default=Behaviour(gate=asyncio.Event()))
    async with gateway_site(tmp_path, [engine]) as site:
        seen = await start_and_leave(site, {"stream": stream}, lambda seen: seen.started.wait())
        (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage == TokenUsage(seen.prompt_tokens, 0, 0)


async def test_leaving_in_the_middle_of_a_stream_settles_the_engines_own_count(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(default=Behaviour(tokens=9, failure=Failure.HANG, fail_after=3))
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        body = {"model": model_name, "messages": messages, "stream": True}
        answer = await client.post("/v1/chat/completions", json=body)
        received = b""
        while b" t2" not in received:
            received += await answer.content.readany()
        answer.close()
        await engine.seen[0].ended.wait()
        (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.ABORTED
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage.completion_tokens == 3


async def test_a_replica_that_refuses_connections_is_passed_over(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], addresses=[closed_port()]) as site:
        async with connected(site) as client:
            statuses = [(await chat(client, stream=bool(n % 2)))[0] for n in range(6)]
        settlements = await site.settlements(6)
    assert statuses == [200] * 6
    assert {settlement.outcome for settlement in settlements} == {Outcome.FINISHED}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_breaks_before_the_first_byte_is_retried_and_charged_once(
    tmp_path: Path, stream: bool
) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan  # whichever is asked first breaks
    engines[0].plan.append(Behaviour(failure=Failure.CUT))
    async with gateway_site(tmp_path, engines) as site, connected(site) as client:
        status, body = await chat(client, stream=stream)
        settlements = await site.settlements(2)
    assert status == 200, body
    assert [len(engine.seen) for engine in engines] == [1, 1]
    assert engines[0].seen[0].request_id == engines[1].seen[0].request_id
    charged, broken = sorted(settlements, key=lambda one: one.tenant_id == platform_tenant_id)
    assert charged.usage.completion_tokens == 4
    assert charged.amount_nanousd
    assert (broken.tenant_id, broken.amount_nanousd) == (platform_tenant_id, 0)


async def test_a_dying_replicas_503_is_retried_elsewhere(tmp_path: Path) -> None:
    healthy, dying = FakeEngine(), FakeEngine()
    dying.default = Behaviour(failure=Failure.STATUS, error=Unavailable("shutting down"))
    async with gateway_site(tmp_path, [healthy, dying]) as site, connected(site) as client:
        statuses = [(await chat(client))[0] for _ in range(6)]
    assert statuses == [200] * 6
    assert len(dying.seen) <= 1


@pytest.mark.parametrize(
    ("stream", "failure"),
    [(False, Failure.STATUS), (True, Failure.STATUS), (True, Failure.ERROR_EVENT)],
)
async def test_a_request_that_its_engines_operator_ended_says_nothing_of_the_replica(
    tmp_path: Path, stream: bool, failure: Failure
) -> None:
    ended = Behaviour(failure=failure, status=500, error=RequestAborted("by its operator"))
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan
    engines[0].plan.append(ended)
    async with gateway_site(tmp_path, engines) as site, connected(site) as client:
        _, body = await chat(client, stream=stream)
        (settlement,) = await site.settlements(1)
        breakers = {endpoint.breaker.state for endpoint in site.gateway.endpoints}
        assert len(engines[0].seen) + len(engines[1].seen) == 1, "nobody begins it anew"
    assert b"request_aborted" in body
    assert settlement.outcome is Outcome.FAILED
    assert breakers == {BreakerState.CLOSED}


def breaker_states(site: GatewaySite) -> list[BreakerState]:
    return [endpoint.breaker.state for endpoint in site.gateway.endpoints]


failures_of_one_request = [
    (False, Behaviour(failure=Failure.STATUS, status=502)),
    (True, Behaviour(failure=Failure.STATUS, status=502)),
    (False, Behaviour(failure=Failure.STATUS, status=500)),
    (True, Behaviour(failure=Failure.ERROR_EVENT)),
]


@pytest.mark.parametrize(("stream", "failed"), failures_of_one_request)
async def test_an_engine_that_fails_on_one_request_is_not_ejected_for_it(
    tmp_path: Path, stream: bool, failed: Behaviour
) -> None:
    engine = FakeEngine()
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        for _ in range(3):  # good answers between: no row
            engine.plan += [failed] * (failed_in_row_max - 1)
            bodies = [(await chat(client, stream=stream))[1] for _ in engine.plan.copy()]
            assert all(b"upstream_failed" in body for body in bodies)
            assert breaker_states(site) == [BreakerState.CLOSED]
            assert (await chat(client, stream=stream))[0] == 200


@pytest.mark.parametrize(("stream", "failed"), failures_of_one_request)
async def test_an_engine_that_fails_on_every_request_is_ejected(
    tmp_path: Path, stream: bool, failed: Behaviour
) -> None:
    engine = FakeEngine(default=failed)
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        for _ in range(failed_in_row_max):
            await chat(client, stream=stream)
        assert breaker_states(site) == [BreakerState.OPEN]
        engine.default = Behaviour()
        assert (await chat(client, stream=stream))[0] == 200
        assert breaker_states(site) == [BreakerState.CLOSED]


async def test_a_502_of_what_stands_before_an_engine_ejects_at_once(tmp_path: Path) -> None:
    behind_proxy = Behaviour(failure=Failure.STATUS, status=502, error=Unavailable("bad gateway"))
    async with gateway_site(tmp_path, [FakeEngine(default=behind_proxy)]) as site:
        async with connected(site) as client:
            assert (await chat(client))[0] == 502
        assert breaker_states(site) == [BreakerState.OPEN]


async def test_a_stream_that_breaks_in_the_middle_ends_with_an_error_event(tmp_path: Path) -> None:
    engine = FakeEngine(default=Behaviour(failure=Failure.CUT, fail_after=2))
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        status, body = await chat(client, stream=True)
        (settlement,) = await site.settlements(1)
    assert status == 200
    assert b"[DONE]" not in body
    last = json.loads(body.split(b"data: ")[-1])
    assert last["error"]["code"] == "upstream_failed"
    assert settlement.outcome is Outcome.FAILED
    assert settlement.usage.completion_tokens == 2


async def test_an_error_inside_a_stream_is_passed_on_and_settled_as_failed(tmp_path: Path) -> None:
    engine = FakeEngine(default=Behaviour(failure=Failure.ERROR_EVENT, fail_after=2))
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        _, body = await chat(client, stream=True)
        (settlement,) = await site.settlements(1)
    last = json.loads(body.split(b"data: ")[-1])
    assert last["error"]["code"] == "upstream_failed"
    assert b"the fake engine" not in body  # an engine's own words may name anything
    assert settlement.outcome is Outcome.FAILED
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engines_refusal_keeps_its_status_and_numbers_and_costs_nothing(
    tmp_path: Path, stream: bool
) -> None:
    error = ContextLengthExceeded("too long", prompt_tokens=5000, max_model_len=4096)
    engine = FakeEngine(default=Behaviour(failure=Failure.STATUS, status=400, error=error))
    async with gateway_site(tmp_path, [engine]) as site, connected(site) as client:
        status, body = await chat(client, stream=stream)
        (settlement,) = await site.settlements(1)
    assert status == 400
    assert json.loads(body)["error"] == json.loads(error_body(error))["error"]
    assert settlement.usage == TokenUsage()
    assert settlement.amount_nanousd == 0


async def test_without_a_live_replica_the_answer_is_503_and_costs_nothing(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [], addresses=[closed_port()]) as site:
        async with connected(site) as client:
            status, body = await chat(client, stream=True)
        (settlement,) = await site.settlements(1)
    assert status == 503, body
    assert settlement.outcome is Outcome.FAILED
    assert settlement.usage == TokenUsage()


async def test_an_engine_that_hangs_is_given_up_and_ejected(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan  # whichever is asked first hangs
    engines[0].plan.append(Behaviour(tokens=9, failure=Failure.HANG, fail_after=2))
    timeouts = Timeouts(first_output_s=20.0, stall_s=0.05)
    async with gateway_site(tmp_path, engines, timeouts=timeouts) as site:
        async with connected(site) as client:
            _, body = await chat(client, stream=True)
            hung = engines[0] if engines[0].seen else engines[1]
            statuses = [(await chat(client))[0] for _ in range(4)]
        await site.settlements(5)
    assert b"deadline_exceeded" in body
    assert statuses == [200] * 4
    assert len(hung.seen) == 1


async def test_the_only_replica_is_asked_again_whatever_it_did_before(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.plan += [
        Behaviour(failure=Failure.CUT),
        Behaviour(tokens=9, failure=Failure.HANG, fail_after=2),
        Behaviour(failure=Failure.STATUS, error=Unavailable("shutting down")),
    ]
    timeouts = Timeouts(first_output_s=20.0, stall_s=0.05)
    async with gateway_site(tmp_path, [engine], timeouts=timeouts) as site:
        async with connected(site) as client:
            statuses = [(await chat(client, stream=True))[0] for _ in range(5)]
        (endpoint,) = site.gateway.endpoints
        assert endpoint.breaker.state is BreakerState.CLOSED
        settlements = await site.settlements(5)
    assert statuses[1:] == [200, 503, 200, 200]  # the first broke behind its head
    ends = [each.outcome for each in settlements]
    assert ends == [Outcome.FAILED] * 3 + [Outcome.FINISHED] * 2


async def test_a_replica_that_is_gone_refuses_at_once_and_uses_up_no_retries(
    tmp_path: Path,
) -> None:
    async with gateway_site(tmp_path, [], addresses=[closed_port()]) as site:
        async with connected(site) as client:
            answers = [await chat(client) for _ in range(20)]
        await site.settlements(20)
        retries = site.gateway.retries
        now_s = SystemClock().monotonic_s()
        assert sum(retries.withdraw(now_s) for _ in range(reserve_retries)) == reserve_retries
    assert {status for status, _ in answers} == {503}
    assert b"try again" in answers[-1][1]


async def test_prepaid_credit_is_never_overrun_and_free_again_after_settling(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(default=Behaviour(gate=asyncio.Event()))
    one_request = 300_000  # nano-dollars; covers one worst case of 100 tokens, not two
    async with (
        gateway_site(
            tmp_path, [engine], credit_floor_nanousd=0, credit_nanousd=one_request
        ) as site,
        connected(site) as client,
    ):
        first = asyncio.create_task(chat(client, max_tokens=100))
        await engine.wait_for(1)
        status, body = await chat(client, max_tokens=100)
        assert status == 402, body
        assert json.loads(body)["error"]["code"] == "insufficient_credit"
        assert engine.default.gate is not None
        engine.default.gate.set()
        assert (await first)[0] == 200
        assert (await chat(client, max_tokens=100))[0] == 200
        settlements = await site.settlements(2)
    assert sum(s.amount_nanousd or 0 for s in settlements) <= one_request


async def test_an_answer_without_a_limit_is_capped_by_the_credit_and_says_so(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(default=Behaviour(tokens=1000))
    async with (
        gateway_site(tmp_path, [engine], credit_floor_nanousd=0, credit_nanousd=1_000_000) as site,
        connected(site) as client,
    ):
        body = {"model": model_name, "messages": messages}
        async with client.post("/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.read()
            usage = (await answer.json())["usage"]
            limit = int(answer.headers["X-Headrace-Max-Tokens"])
    assert usage["completion_tokens"] == limit < 1000


def leave_running(directory: Path, request_id: str) -> None:
    """A journal of a gateway that died while this request ran."""
    clock = SystemClock()
    with closing(Journal(directory / "journal")) as journal:
        crashed = Meter(Admission(clock), journal)
        reservation = crashed.reserve(
            request_id=request_id,
            tenant_id=make_id("ten", 1),
            project_id=make_id("prj", 1),
            key_id=make_id("key", 1),
            model=model_name,
            price=PriceVersion(make_id("prb", 1), price),
            credit_floor_nanousd=None,
            prompt_tokens_max=100,
            output_tokens_max=100,
        )
        crashed.checkpoint(reservation, TokenUsage(7, 0, 3))


def ended_request(request_id: str, completion_tokens: int) -> Seen:
    seen = Seen(request_id, {}, b"", prompt_tokens=7, completion_tokens=completion_tokens)
    seen.ended.set()
    return seen


async def test_requests_that_a_crash_left_running_are_settled_at_the_next_start(
    tmp_path: Path,
) -> None:
    leave_running(tmp_path, "req_left")
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        (settlement,) = await site.settlements(1)
    assert settlement.request_id == "req_left"
    assert settlement.source is UsageSource.RECOVERED
    assert settlement.usage == TokenUsage(7, 0, 3)


async def test_an_engine_that_outlived_the_crash_says_what_the_cut_request_used(
    tmp_path: Path,
) -> None:
    leave_running(tmp_path, "req_left")
    engines = [FakeEngine(), FakeEngine()]
    engines[1].seen.append(ended_request("req_left", 9))
    async with gateway_site(tmp_path, engines, addresses=[closed_port()]) as site:
        (settlement,) = await site.settlements(1)
    assert settlement.source is UsageSource.ENGINE
    assert settlement.usage == TokenUsage(7, 0, 9)


async def test_a_cut_request_that_two_engines_know_is_settled_at_its_checkpoint(
    tmp_path: Path,
) -> None:
    leave_running(tmp_path, "req_left")
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.seen.append(ended_request("req_left", 50))
    async with gateway_site(tmp_path, engines) as site:
        (settlement,) = await site.settlements(1)
    assert settlement.source is UsageSource.RECOVERED
    assert settlement.usage == TokenUsage(7, 0, 3)


async def test_a_full_journal_disk_refuses_requests_before_they_reach_an_engine(
    tmp_path: Path,
) -> None:
    limits = JournalLimits(segment_bytes=2_000, emergency_bytes=4_000, retry_s=0.001)
    disk = BoundedDisk(limits.emergency_bytes + 100)
    async with (
        gateway_site(tmp_path, [FakeEngine()], disk=disk, journal_limits=limits) as site,
        connected(site) as client,
    ):
        answers = [await chat(client) for _ in range(6)]
        reached = len(site.engines[0].seen)
        async with client.get("/readyz") as answer:
            assert answer.status == 503
        assert reached == sum(status == 200 for status, _ in answers) < len(answers)
        assert {status for status, _ in answers} <= {200, 503}
        disk.free_bytes = 10**9
        while (await chat(client))[0] != 200:
            pass  # until the writer has found the space
        await site.booked(reached + 1)  # so small a journal forgets what is in the ledger
        assert site.database.ledger.settlement_count() == reached + 1


async def test_many_requests_of_every_outcome_settle_once_each(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan
    failures = [Failure.NONE, Failure.CUT, Failure.ERROR_EVENT, Failure.STATUS]
    engines[0].plan.extend(Behaviour(failure=failures[n % 4], fail_after=n % 3) for n in range(40))
    async with gateway_site(tmp_path, engines) as site, connected(site) as client:
        answers = await asyncio.gather(
            *(chat(client, stream=bool(n % 2)) for n in range(40)), return_exceptions=True
        )
        await site.settlements(40)
        worked = sum(has_worked(seen) for engine in engines for seen in engine.seen)
        settlements = await site.settlements(40)
        while sum(s.usage.prompt_tokens > 0 for s in settlements) < worked:
            settlements = await site.settlements(len(settlements) + 1)
        await nothing_is_held(site)
    settlements = await site.settlements(len(settlements))  # an attempt that was refused has a row
    assert len(settlements) == len({s.request_id for s in settlements})
    borne = [s for s in settlements if s.tenant_id == platform_tenant_id]
    settlements = [s for s in settlements if s.tenant_id != platform_tenant_id]
    assert len(settlements) == 40
    assert {s.amount_nanousd for s in borne} <= {0}
    assert {s.request_id.rpartition(".try")[0] for s in borne} <= {
        s.request_id for s in settlements
    }
    finished = [s for s in settlements if s.outcome is Outcome.FINISHED]
    whole = [a for a in answers if not isinstance(a, BaseException) and is_whole(*a)]
    assert len(finished) == len(whole)
    assert all(s.usage.completion_tokens == 4 for s in finished)
    with closing(open_sqlite(tmp_path / "headrace.db")) as database:
        (row,) = database.ledger.usage(("model",))
        assert row.requests == 40 + len(borne)
        assert row.completion_tokens == sum(
            s.usage.completion_tokens for s in [*settlements, *borne]
        )
        assert database.ledger.check() == []


def has_worked(seen: Seen) -> bool:
    """Whether an engine's counters have this attempt: it did not end in a refusal."""
    refuses = (
        {Failure.STATUS} if b'"stream":true' in seen.body else {Failure.STATUS, Failure.ERROR_EVENT}
    )
    return seen.behaviour.failure not in refuses


def is_whole(status: int, body: bytes) -> bool:
    return status == 200 and (body.startswith(b"{") or body.endswith(b"data: [DONE]\n\n"))


async def nothing_is_held(site: GatewaySite) -> None:
    """Every lease and every reservation was given back."""
    assert [endpoint.in_flight_tokens for endpoint in site.gateway.endpoints] == [
        0 for _ in site.gateway.endpoints
    ]
    assert all(endpoint.in_flight_requests == 0 for endpoint in site.gateway.endpoints)
    async with connected(site) as client, client.get("/metrics") as answer:
        assert "headrace_gateway_running_requests 0.0" in await answer.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_the_gateway_cuts_at_its_own_end_is_settled_and_given_back(
    tmp_path: Path, stream: bool
) -> None:
    engine = FakeEngine(default=Behaviour(tokens=9, failure=Failure.HANG, fail_after=3))
    async with gateway_site(tmp_path, [engine]) as site:
        body = json.dumps({"model": model_name, "messages": messages, "stream": stream}).encode()
        messages_in: asyncio.Queue[Message] = asyncio.Queue()
        messages_in.put_nowait({"type": "http.request", "body": body, "more_body": False})
        got: asyncio.Queue[Message] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"authorization", f"Bearer {site.api_key}".encode())],
        }
        task = asyncio.create_task(site.gateway.app(scope, messages_in.get, got.put))
        seen = await engine.wait_for(1)
        while stream and b" t2" not in (await got.get()).get("body", b""):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await seen.ended.wait()
        (settlement,) = await site.settlements(1)
        await nothing_is_held(site)
    assert settlement.outcome is Outcome.FAILED
    assert settlement.source is UsageSource.COUNTED
    assert settlement.usage.completion_tokens == (3 if stream else 0)


async def test_a_request_that_cannot_be_put_to_an_engine_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: PrefixLearner, *_: object) -> None:
        raise KeyError("what nobody foresaw")

    monkeypatch.setattr(PrefixLearner, "note", fail)
    async with gateway_site(tmp_path, [FakeEngine()]) as site, connected(site) as client:
        status, _ = await chat(client)
        (settlement,) = await site.settlements(1)
        assert site.journal.running() == []
    assert status == 500
    assert settlement.outcome is Outcome.FAILED
    assert settlement.amount_nanousd == 0
