"""Several real gateways, one real database, clients that never give up, and things that die.

    clients ──> gateways (processes) ──> one engine, which remembers everything: the oracle
                    └── journal ──poster──> PostgreSQL          limits: PostgreSQL or Redis

    gateway, poster   kill -9; a poster's batch, of which nobody knows whether it was committed,
                      is delivered again
    database, redis   kill -9 or stopped, and started again
    network           the database answers nothing for a while, and refuses nothing
    clients           try again, leave in the middle of a stream, send one request twice at once

At the end every request that reached the engine must be in the ledger once, at the tokens that the
engine counted; all that was sent under one key must have cost one whole answer, whatever broke; and
no limit may have been exceeded at any time (`chaos_books.py`). What happens is a `ChaosPlan`. Tests
run it short, `bench` long.
"""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from headrace.sim.booked import overruns, read_settlements
from headrace.sim.chaos_books import KeyCharges, requests_wrong
from headrace.sim.chaos_plan import Ask, ChaosPlan, ChaosReport, max_tokens
from headrace.sim.counting_engine import Oracle, oracle_path
from headrace.sim.gateway_site import fill_store, make_id, pepper
from headrace.sim.listening_process import Process
from headrace.sim.postgres_server import PostgresServer
from headrace.sim.redis_server import RedisServer
from headrace.spec.tenancy import ApiKey
from headrace.storage import Database, open_postgres

ready_timeout_s = 180.0  # of a machine that does much else
request_timeout_s = 30.0
stream_share = 0.3
leaving_share = 0.2  # of those that stream
keyed_share = 0.2  # of the works: every attempt has the same Idempotency-Key, at any gateway
duplicate_share = 0.3  # of their attempts: sent to two gateways at once, or twice to one
retry_delay_s = 0.2
refusals_max = 25  # one after another, once all is up again: what is left does not cover a request


class ChaosSite:
    """Everything that runs. `with ChaosSite(...)`, then `run`."""

    def __init__(self, directory: Path, plan: ChaosPlan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._rng = random.Random(plan.seed)  # noqa: S311 -- a plan, repeatable
        self._postgres = PostgresServer(directory / "postgres", {"fsync": "off"})
        self._redis = RedisServer(directory / "redis") if plan.uses_redis else None
        self._engine = Process("engine", directory / "engine")
        self._gateways = [
            Process(f"gateway{number}", directory / f"gateway{number}")
            for number in range(plan.gateways)
        ]
        self._api_key = ""
        self._answered: set[str] = set()  # request ids of whole answers that clients got
        self._keys: set[str] = set()  # prompts of keyed works that clients got an answer to
        self._stopping = False
        self.report = ChaosReport()

    def stop(self) -> None:
        """Send no more; `run` ends with what was done until now."""
        self._stopping = self.report.was_stopped = True

    def __enter__(self) -> Self:
        """Start the servers, fill the store, start the gateways."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        self._stack.close()

    def _start(self) -> None:
        for process in (self._engine, *self._gateways):
            self._stack.callback(process.sock.close)
        self._postgres.create()
        self._postgres.start()
        self._stack.callback(self._postgres.stop)
        if self._redis is not None:
            self._redis.start()
            self._stack.callback(self._redis.stop)
        self._engine.start("headrace.sim.counting_engine", "{fd}")
        self._stack.callback(self._engine.end, signal.SIGTERM)
        with closing(self._database()) as database:
            self._api_key = fill_store(database, [(self._engine.url, "")], None)
            key = database.store.get(ApiKey, make_id("key", 1))
            database.store.update(msgspec.structs.replace(key, limits=self._plan.limits))
        for gateway in self._gateways:
            (gateway.directory / "pepper").write_bytes(pepper)
            self._start_gateway(gateway)
            self._stack.callback(gateway.end, signal.SIGKILL)

    def _database(self) -> Database:
        return open_postgres(self._postgres.url)

    def _start_gateway(self, gateway: Process) -> None:
        environment = {"HEADRACE_DATABASE_URL": self._postgres.url}
        if self._redis is not None:
            environment["HEADRACE_LIMITS_URL"] = self._redis.url
        gateway.start(
            "headrace.cli.main", "gateway", "--data-dir", str(gateway.directory),
            "--listen-fd", "{fd}", **environment,
        )  # fmt: skip

    async def run(self) -> ChaosReport:
        """Do the plan's work while things die, bring everything back, and compare."""
        begun_s = time.monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(self._ready(session, gateway) for gateway in self._gateways))
            works = iter(range(self._plan.works))
            killer = asyncio.create_task(self._kill())
            keeper = asyncio.create_task(self._keep_running())
            try:
                await asyncio.gather(
                    *(self._client(session, works, number) for number in range(self._plan.clients))
                )
            finally:
                killer.cancel()
                (ended,) = await asyncio.gather(killer, return_exceptions=True)
                if isinstance(ended, Exception):
                    self.report.problems.append(f"what kills ended itself: {ended!r}")
            await asyncio.gather(*(self._ready(session, gateway) for gateway in self._gateways))
            if self._plan.is_spent_out:
                await self._spend_what_is_left(session)
            keeper.cancel()
            self.report.took_s = round(time.monotonic() - begun_s, 1)
            for gateway in self._gateways:
                await asyncio.to_thread(gateway.end, signal.SIGTERM)
            async with session.get(self._engine.url + oracle_path) as answer:
                oracle = msgspec.json.decode(await answer.read(), type=Oracle)
        self._compare(oracle)
        return self.report

    async def _ready(self, session: aiohttp.ClientSession, gateway: Process) -> None:
        deadline_s = time.monotonic() + ready_timeout_s
        while time.monotonic() < deadline_s:
            timeout = aiohttp.ClientTimeout(total=ready_timeout_s)
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{gateway.url}/readyz", timeout=timeout) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(retry_delay_s)
        raise RuntimeError(f"{gateway.name} is not ready:\n{gateway.log()}")

    async def _client(
        self, session: aiohttp.ClientSession, works: Iterator[int], number: int
    ) -> None:
        rng = random.Random(self._plan.seed * 1_000 + number)  # noqa: S311 -- repeatable
        end_s = time.monotonic() + self._plan.duration_s_max
        for work in works:
            if self._stopping or time.monotonic() >= end_s:
                return
            for _ in range(self._plan.attempts_max):
                if self._stopping or await self._attempt(session, rng, work):
                    break
                await asyncio.sleep(rng.random() * retry_delay_s)
            else:
                self.report.given_up += 1

    async def _spend_what_is_left(self, session: aiohttp.ClientSession) -> None:
        """Ask on, one at a time, until the limits refuse for good.

        Clients may have given up while the store was away or a dead gateway held a lease."""
        refusals = 0
        gateways = itertools.cycle(self._gateways)
        works = itertools.count(self._plan.works)
        while refusals < refusals_max and not self._stopping:
            ask = Ask(next(works), streams=False, leaves=False)
            if await self._ask(session, next(gateways), ask) is not None:
                refusals = 0
                continue
            refusals += 1
            await asyncio.sleep(retry_delay_s)

    async def _attempt(self, session: aiohttp.ClientSession, rng: random.Random, work: int) -> bool:
        """Ask one of the gateways; whether the work is done. Some callers leave in the middle."""
        fixed = random.Random(self._plan.seed * 7_919 + work)  # noqa: S311 -- of all its attempts
        if fixed.random() < keyed_share:
            return await self._attempt_keyed(session, rng, work, streams=fixed.random() < 0.5)
        streams = rng.random() < stream_share
        ask = Ask(work, streams=streams, leaves=streams and rng.random() < leaving_share)
        return await self._ask(session, rng.choice(self._gateways), ask) is not None

    async def _attempt_keyed(
        self, session: aiohttp.ClientSession, rng: random.Random, work: int, *, streams: bool
    ) -> bool:
        """The same under the key of the work, at one gateway or at two at once."""
        ask = Ask(work, streams=streams, leaves=False, key=f"{self._plan.seed}-{work}")
        gateways = [rng.choice(self._gateways)]
        if rng.random() < duplicate_share:
            gateways.append(rng.choice(self._gateways))
        asked = [self._ask(session, gateway, ask) for gateway in gateways]
        answered = [found for found in await asyncio.gather(*asked) if found is not None]
        self.report.duplicates += len(answered) > 1
        if answered:
            self._keys.add(ask.prompt)
        return bool(answered)

    async def _ask(self, session: aiohttp.ClientSession, gateway: Process, ask: Ask) -> str | None:
        """The request id of a whole answer, or of one that was left; None: it must be tried again.

        A client that leaves knows no id."""
        headers = {"authorization": f"Bearer {self._api_key}"}
        if ask.key:
            headers["idempotency-key"] = ask.key
        timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        url = f"{gateway.url}/v1/chat/completions"
        try:
            async with session.post(
                url, json=ask.body(), headers=headers, timeout=timeout
            ) as answer:
                self.report.statuses[answer.status] += 1
                if answer.status != 200:
                    return None
                if ask.leaves:
                    await answer.content.readany()
                    answer.close()
                    return ""
                whole = await answer.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            self.report.broken += 1
            return None
        if ask.streams and not whole.rstrip().endswith(b"data: [DONE]"):
            self.report.broken += 1
            return None
        self.report.answers += 1
        request_id = answer.headers["x-request-id"]
        if not ask.key:  # under a key the answer may be another request's
            self._answered.add(request_id)
        return request_id

    async def _keep_running(self) -> None:
        """What a supervisor does: start again what ended by itself."""
        while True:
            await asyncio.sleep(retry_delay_s)
            for gateway in self._gateways:
                if gateway.ended():
                    self._start_gateway(gateway)

    async def _kill(self) -> None:
        """Kill one thing after another, and start it again."""
        kinds = [kind for kind in self._plan.events if kind != "redis" or self._redis]
        for kind in itertools.islice(itertools.cycle(kinds), self._plan.events_max):
            await asyncio.sleep(self._plan.event_interval_s)
            self.report.kills[kind] += 1
            await asyncio.shield(asyncio.create_task(self._kill_one(kind)))

    async def _kill_one(self, kind: str) -> None:
        gateway = self._rng.choice(self._gateways)
        if kind == "poster":
            gateway.kill_children()
            return
        if kind == "network":
            self._postgres.freeze()
            try:
                await asyncio.sleep(self._plan.outage_s)
            finally:
                self._postgres.thaw()
            return
        if kind == "gateway":
            await asyncio.to_thread(gateway.end, signal.SIGKILL)
            self._start_gateway(gateway)
            return
        server_ = self._postgres if kind == "database" or self._redis is None else self._redis
        await asyncio.to_thread(self._rng.choice([server_.kill, server_.stop]))
        await asyncio.sleep(self._plan.outage_s)
        await asyncio.to_thread(server_.start)

    def _compare(self, oracle: Oracle) -> None:
        """Say what is lost, doubled, wrong or overrun."""
        report = self.report
        with closing(self._database()) as database:
            booked = read_settlements(database)
            report.problems += database.ledger.check()
        report.engine_requests, report.settlements = len(oracle.tokens), len(booked)
        report.billed_tokens = sum(sum(row.tokens) for row in booked.values())
        report.billed_nanousd = sum(row.amount_nanousd for row in booked.values())
        report.problems += requests_wrong(oracle, booked, self._answered)
        charges = KeyCharges.of(oracle, booked, max_tokens)
        report.keys = len(charges.owed)
        report.problems += charges.wrong(self._keys)
        if self._plan.limits is not None:
            report.problems += overruns(self._plan.limits, booked.values())
