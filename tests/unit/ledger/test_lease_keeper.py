"""Nobody is refused what the store has, whoever else takes of it meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from headrace.base.errors import RateLimited
from headrace.ledger import lease_keeper
from headrace.ledger.lease_keeper import LeaseKeeper
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage
from headrace.ledger.scopes import ScopeLimits, scope_ids
from headrace.ledger.shared_admission import SharedAdmission
from headrace.sim.clock import ManualClock
from headrace.sim.memory_limits import MemoryLimits
from headrace.spec.limits import Limits
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import UsageRow

price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)
each_tokens, requests = 10, 60
limits = ScopeLimits(key=Limits(tokens_per_period=requests * each_tokens))
ids = scope_ids("ten_a", "prj_a", "key_a", "m")


class EmptyLedger:
    """Nothing was used before."""

    def usage(
        self,
        group_by: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> list[UsageRow]:
        return []


class Gateway:
    """Admission over leases, and who keeps them."""

    def __init__(self, name: str, store: MemoryLimits, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.admission = SharedAdmission(clock, name)
        self.admission.begin(store.begin(name), 0)
        self.keeper = LeaseKeeper(
            admission=self.admission,
            limits=store,
            ledger=EmptyLedger(),
            clock=clock,
            durable_sequence=lambda: 0,
        )

    async def admit(self, request_id: str) -> bool:
        """Whether a request is admitted; it then uses all that it may."""
        await self.keeper.prepare(
            ids,
            limits,
            price=price,
            credit_floor_nanousd=None,
            prompt_tokens_max=each_tokens,
            output_tokens_max=0,
        )
        try:
            held = self.admission.reserve(
                request_id=request_id,
                tenant_id="ten_a",
                project_id="prj_a",
                key_id="key_a",
                model="m",
                price=price,
                credit_floor_nanousd=None,
                prompt_tokens_max=each_tokens,
                output_tokens_max=0,
                limits=limits,
            )
        except RateLimited:
            return False
        await asyncio.sleep(0)
        self.admission.settle(held, TokenUsage(each_tokens), Outcome.FINISHED)
        return True


@asynccontextmanager
async def gateways(count: int) -> AsyncIterator[list[Gateway]]:
    clock = ManualClock()
    store = MemoryLimits(clock.wall_s)
    made = [Gateway(f"g{number}", store, clock) for number in range(count)]
    async with AsyncExitStack() as stack:
        for each in made:
            task = asyncio.create_task(each.keeper.run())
            stack.callback(task.cancel)
        yield made


@pytest.mark.parametrize("count", [1, 3])
async def test_all_of_a_limit_is_given_out_and_no_more_of_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "interval_s", 0.01)
    monkeypatch.setattr(lease_keeper, "attempts_max", 10_000)  # however slow this machine is
    monkeypatch.setattr(lease_keeper, "patience_max", 10_000)
    async with gateways(count) as made:
        admitted = await asyncio.gather(
            *(made[number % count].admit(f"r{number}") for number in range(requests))
        )
        assert admitted == [True] * requests
        assert not await made[0].admit("one too many")


@pytest.fixture
def gateway() -> Gateway:
    """One gateway, whose exchanges are the test's."""
    clock = ManualClock(1_800_014_400.0)
    return Gateway("g", MemoryLimits(clock.wall_s), clock)


def keyed(tokens_per_period: int) -> ScopeLimits:
    return ScopeLimits(key=Limits(tokens_per_period=tokens_per_period))


async def lease(gateway: Gateway, wanted: ScopeLimits, tokens: int) -> bool:
    """Whether so many tokens are leased, after an exchange if that is needed."""
    asking = asyncio.create_task(
        gateway.keeper.prepare(
            ids,
            wanted,
            price=price,
            credit_floor_nanousd=None,
            prompt_tokens_max=tokens,
            output_tokens_max=0,
        )
    )
    while not asking.done():
        await asyncio.sleep(0)
        if gateway.keeper._waiting:
            await gateway.keeper.exchange_once()
    return await asking


def reserve(gateway: Gateway, request_id: str, wanted: ScopeLimits, tokens: int) -> Reservation:
    return gateway.admission.reserve(
        request_id=request_id,
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="m",
        price=price,
        credit_floor_nanousd=None,
        prompt_tokens_max=tokens,
        output_tokens_max=0,
        limits=wanted,
    )


async def use(gateway: Gateway, wanted: ScopeLimits, tokens: int) -> None:
    """One request that uses so much, of which the store hears."""
    assert await lease(gateway, wanted, tokens)
    held = reserve(gateway, f"r{tokens}", wanted, tokens)
    gateway.admission.settle(held, TokenUsage(tokens), Outcome.FINISHED)
    for _ in range(3):
        await gateway.keeper.exchange_once()


@pytest.mark.parametrize("limits", [Limits(tokens_per_minute=100), Limits(tokens_per_period=100)])
async def test_what_was_left_of_a_window_says_nothing_of_the_next(
    gateway: Gateway, limits: Limits
) -> None:
    wanted = ScopeLimits(key=limits)
    await use(gateway, wanted, 100)
    assert gateway.admission.room(ids, wanted).tokens == 0
    gateway.clock.advance(86_400)
    assert gateway.admission.room(ids, wanted).tokens is None
    standing = gateway.admission.standing(ids, wanted)
    assert standing.tokens is None or standing.tokens.remaining == 100
    assert await lease(gateway, wanted, 100)


async def test_what_the_store_said_a_while_ago_is_asked_again_before_an_answer_is_cut_by_it(
    gateway: Gateway,
) -> None:
    wanted = keyed(100)
    other = Gateway("other", gateway.store, gateway.clock)
    assert await lease(other, wanted, 90)
    await use(gateway, wanted, 10)
    assert gateway.admission.room(ids, wanted).tokens == 0
    for _ in range(3):  # it gives back what lies idle
        await other.keeper.exchange_once()
    assert not await gateway.keeper.look(ids, wanted, None), "it was told just now"
    gateway.clock.advance(1)
    looking = asyncio.create_task(gateway.keeper.look(ids, wanted, None))
    await asyncio.sleep(0)
    assert gateway.keeper._waiting
    await gateway.keeper.exchange_once()
    assert await looking
    assert gateway.admission.room(ids, wanted).tokens == 90


async def test_of_a_limit_that_was_lowered_nothing_is_spent_without_asking(
    gateway: Gateway,
) -> None:
    assert await lease(gateway, keyed(100), 80)
    with pytest.raises(RateLimited):
        reserve(gateway, "r", keyed(0), 10)
    assert not await lease(gateway, keyed(0), 10)
    assert await lease(gateway, keyed(20), 20)
    assert not await lease(gateway, keyed(20), 21)


async def test_a_limit_that_is_lowered_while_the_store_is_asked_is_lowered(
    gateway: Gateway,
) -> None:
    """The grant of the old limit comes after the new one is known."""
    lack = gateway.admission.lacks(
        ids, keyed(100), price=price, credit_floor_nanousd=None,
        prompt_tokens_max=80, output_tokens_max=0,
    )  # fmt: skip
    said = gateway.admission.compose(0, lack)
    answers = gateway.store.exchange(said)
    with pytest.raises(RateLimited):
        reserve(gateway, "r1", keyed(5), 6)
    gateway.admission.take(answers)
    with pytest.raises(RateLimited):
        reserve(gateway, "r2", keyed(5), 6)


async def test_the_wall_clock_of_a_gateway_counts_for_nothing(gateway: Gateway) -> None:
    """Windows, and the times of settlements, are the store's."""
    wanted = keyed(100)
    await use(gateway, wanted, 100)
    store_s = gateway.admission.time_s()
    gateway.clock.set_wall(-40.0)
    assert gateway.admission.time_s() == store_s
    held = reserve(gateway, "late", ScopeLimits(), 1)
    ended = gateway.admission.settle(held, TokenUsage(1), Outcome.FINISHED)
    assert (held.reserve_time, ended.settle_time) == (store_s, store_s)


@pytest.mark.parametrize("off_s", [-40.0, 40.0, 3600.0])
async def test_gateways_whose_clocks_differ_share_one_minute(off_s: float) -> None:
    """The one's clock is in another minute, or hour; the store's minute ends for both at once."""
    store_clock = ManualClock(1_800_014_400.0 + 50.0)
    store = MemoryLimits(store_clock.wall_s)
    clocks = [store_clock, ManualClock(store_clock.wall_s() + off_s)]
    both = [Gateway(f"g{number}", store, clock) for number, clock in enumerate(clocks)]
    wanted = ScopeLimits(key=Limits(tokens_per_minute=100))
    for minute in range(2):
        used = 0
        for number in range(30):
            one = both[number % 2]
            if await lease(one, wanted, 10):
                held = reserve(one, f"r{minute}.{number}", wanted, 10)
                one.admission.settle(held, TokenUsage(10), Outcome.FINISHED)
                used += 10
            await one.keeper.exchange_once()
        assert used == 100
        with pytest.raises(RateLimited) as refused:
            reserve(both[1], "late", wanted, 10)
        assert refused.value.retry_after_s == 60.0 - (store_clock.wall_s() % 60.0)
        for clock in clocks:
            clock.advance(10.0)


async def test_a_rolling_limit_says_when_enough_of_it_is_forgotten(gateway: Gateway) -> None:
    wanted = ScopeLimits(key=Limits(tokens_per_period=10, period=640))
    await use(gateway, wanted, 6)
    gateway.clock.advance(100)
    await use(gateway, wanted, 4)
    assert not await lease(gateway, wanted, 5)
    with pytest.raises(RateLimited) as refused:
        reserve(gateway, "r", wanted, 5)
    wait_s = refused.value.retry_after_s
    assert wait_s == 640 + 10 - 100  # the bucket of the first use, and none of the second
    gateway.clock.advance(wait_s - 1)
    assert not await lease(gateway, wanted, 5)
    gateway.clock.advance(1)
    assert await lease(gateway, wanted, 5)


async def test_a_rolling_limit_that_runs_says_a_second(gateway: Gateway) -> None:
    wanted = ScopeLimits(key=Limits(tokens_per_period=10, period=640))
    assert await lease(gateway, wanted, 8)
    reserve(gateway, "runs", wanted, 8)
    assert not await lease(gateway, wanted, 5)
    with pytest.raises(RateLimited) as refused:
        reserve(gateway, "r", wanted, 5)
    assert refused.value.retry_after_s == 1.0
