"""Every store of shared limits answers like the one in memory, whatever it is asked."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.base.errors import Conflict, SetupError, Unavailable
from headrace.sim.clock import ManualClock
from headrace.sim.memory_limits import MemoryLimits
from headrace.sim.redis_server import RedisServer
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.storage import open_postgres
from headrace.storage.lease_exchange import (
    Ask,
    Exchange,
    LimitKind,
    SharedLimits,
    Standing,
    Use,
)
from headrace.storage.redis_limits import RedisLimits

exchanges_per_seed = 60


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def limits(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Iterator[SharedLimits]:
    with ExitStack() as stack:
        if request.param == "redis":
            store = RedisLimits(redis_server.url, "7")
            store.mark()
            stack.callback(store.close)
            yield store
            return
        if request.param == "sqlite":
            database = open_sqlite_copy(tmp_path / "headrace.db", ManualClock())
        else:
            database = open_postgres(request.getfixturevalue("new_postgres_url")())
        stack.callback(database.close)
        yield database.limits


def random_ask(rng: random.Random, key: str, kind: LimitKind, committed: int) -> Ask:
    oldest = rng.randint(0, 3)
    return Ask(
        key=key,
        kind=kind,
        capacity=rng.choice([0, 100, 5_000]),
        oldest_window=oldest,
        committed=committed,
        need=rng.choice([0, 7, 90]),
        spare=rng.choice([0, 40]),
        expires=kind is LimitKind.SLOTS or key.endswith("minute"),
        has_base=rng.random() < 0.7,
        base=((oldest, rng.randint(1, 50)),) if rng.random() < 0.5 else (),
        kept_since=rng.randint(0, oldest),
    )


@pytest.mark.parametrize("seed", range(3))
def test_it_answers_like_the_one_in_memory(limits: SharedLimits, seed: int) -> None:
    rng = random.Random(seed)
    model = MemoryLimits(lambda: 0.0)
    kinds = {
        "a|tokens|day": LimitKind.CALENDAR,
        "a|tokens|minute": LimitKind.CALENDAR,
        "b|x|nanousd|3600": LimitKind.ROLLING,
        "b|slots": LimitKind.SLOTS,
    }
    leases: dict[tuple[str, str], int] = {}
    for operation in range(1, exchanges_per_seed):
        gateway_id = rng.choice(["one", "two", "three"])
        chosen = [key for key in kinds if rng.random() < 0.6]
        asks = [
            random_ask(rng, key, kinds[key], rng.randint(0, leases.get((gateway_id, key), 0)))
            for key in chosen
        ]
        uses = [Use(key, rng.randint(0, 3), rng.randint(0, 20)) for key in chosen]
        said = Exchange(
            gateway_id, operation, max(1, operation - rng.randint(0, 2)), operation,
            tuple(uses), tuple(asks),
        )  # fmt: skip
        expected = model.exchange(said)
        assert limits.exchange(said).answers == expected.answers
        for answer in expected.answers:
            leases[gateway_id, answer.key] = answer.lease
        begun = limits.begin(gateway_id)
        known = model.begin(gateway_id)
        assert (begun.operation, begun.report, begun.sequence) == (
            known.operation,
            known.report,
            known.sequence,
        )
        assert begun.leases == known.leases


def test_a_rolling_limit_without_room_tells_what_is_used_when(limits: SharedLimits) -> None:
    ask = Ask("b|x|tokens|3600", LimitKind.ROLLING, 10, oldest_window=3, committed=0, need=1)
    uses = tuple(Use(ask.key, window, amount) for window, amount in ((70, 4), (2, 9), (9, 6)))
    (full,) = limits.exchange(Exchange("one", 1, 1, 0, uses, (ask,))).answers
    assert (full.used, full.room, full.windows) == (10, 0, ((9, 6), (70, 4)))
    (rest,) = limits.exchange(Exchange("one", 2, 2, 0, (), (replace(ask, capacity=11),))).answers
    assert (rest.lease, rest.windows) == (1, ())


def test_an_exchange_that_was_overtaken_is_refused(limits: SharedLimits) -> None:
    limits.exchange(Exchange("one", 5, 1, 0))
    with pytest.raises(Conflict):
        limits.exchange(Exchange("one", 5, 2, 0))
    with pytest.raises(Conflict):
        limits.exchange(Exchange("one", 4, 2, 0))
    assert limits.begin("one").report == 1


def test_a_gateway_that_never_was_there_is_known_as_such(limits: SharedLimits) -> None:
    begun = limits.begin("nobody")
    assert begun == Standing(begun.time_s)
    assert begun.sequence is None


def test_redis_that_lost_its_data_grants_nothing(open_directory: Path) -> None:
    if reason := RedisServer.missing():
        pytest.skip(reason)
    server = RedisServer(open_directory / "lost")
    server.start()
    try:
        limits = RedisLimits(server.url, "7")
        limits.mark()
        limits.exchange(Exchange("one", 1, 1, 0))
        server.kill()
        with pytest.raises(Unavailable, match="does not answer"):
            limits.exchange(Exchange("one", 2, 2, 0))
        server.start()
        assert limits.begin("one").operation == 1
        limits._client.flushall()
        for ask in (lambda: limits.begin("one"), lambda: limits.exchange(Exchange("one", 3, 3, 0))):
            with pytest.raises(Unavailable, match="lost the limits"):
                ask()
        limits.close()
    finally:
        server.stop()


def test_limits_are_counted_anew_from_what_gateways_hold_and_the_ledger_has(
    open_directory: Path,
) -> None:
    if reason := RedisServer.missing():
        pytest.skip(reason)
    server = RedisServer(open_directory / "counted")
    server.start()
    key, capacity, used = "a|tokens|day", 100, 10

    def exchange(name: str, operation: int, committed: int, need: int) -> int:
        """The lease that a gateway gets, asked twice where nobody has counted the limit yet."""
        ask = Ask(key, LimitKind.CALENDAR, capacity, 3, committed, need=need, has_base=False)
        (answer,) = store.exchange(Exchange(name, operation, 1, 0, (), (ask,))).answers
        if answer.is_new:
            ask = replace(ask, has_base=True, base=((3, used),))
            (answer,) = store.exchange(Exchange(name, operation + 1, 1, 0, (), (ask,))).answers
        return answer.lease

    store = RedisLimits(server.url, "7")
    try:
        store.mark()
        assert (exchange("one", 1, 0, 60), exchange("two", 1, 0, 20)) == (60, 20)
        with pytest.raises(SetupError, match="nothing is to be counted"):
            store.recount()
        store._client.flushall()
        store.recount()
        for name, held in (("one", 60), ("two", 20)):
            with pytest.raises(Unavailable, match="counted anew"):
                exchange(name, 3, held, 50)
        store._client.set("headrace:limits:counting", "0")  # the time is over
        assert exchange("two", 5, 20, 50) == capacity - used - 60
        assert exchange("one", 5, 60, 50) == 60
    finally:
        store.close()
        server.stop()


def test_credit_is_leased_once(
    new_postgres_url: Callable[[], str], redis_server: RedisServer
) -> None:
    database = open_postgres(new_postgres_url())
    database.ledger.credit("ten_a", 1_000, "first", "paid")
    redis_limits = RedisLimits(redis_server.url, "7")
    redis_limits.mark()
    ask = Ask(
        "ten_a|credit", LimitKind.CREDIT, -100, 0, 0, need=700, tenant_id="ten_a",
        credits=1_000, debits=0,
    )  # fmt: skip
    for store in (database.limits, redis_limits):
        first = store.exchange(Exchange("one", 1, 1, 0, (), (ask,))).answers[0]
        second = store.exchange(Exchange("two", 1, 1, 0, (), (ask,))).answers[0]
        assert (first.lease, second.lease, second.room) == (700, 200, 0)
    redis_limits.close()
    database.close()
