"""The shared store is away: a gateway spends what it has leased and no more, or refuses.

Exchanges are made one by one here, so that nothing depends on time.
"""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from headrace.base.errors import RateLimited, Unavailable
from headrace.ledger.admission import UnpricedPolicy
from headrace.ledger.lease_keeper import LeaseKeeper, WhenAway
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.ledger.scopes import ScopeLimits, scope_ids
from headrace.ledger.shared_admission import SharedAdmission
from headrace.sim.clock import ManualClock
from headrace.sim.memory_limits import MemoryLimits
from headrace.spec.limits import Limits
from headrace.storage import UsageRow
from headrace.storage.lease_exchange import Answers, Exchange

each_tokens, requests = 10, 60
exchanges_max = 8  # of one request; what it waits for then is time
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


class Store(MemoryLimits):
    """A store that can be away."""

    is_away = False

    def exchange(self, said: Exchange) -> Answers:
        if self.is_away:
            raise Unavailable("the store is away")
        return super().exchange(said)


class Gateway:
    """Admission over leases, and who keeps them."""

    def __init__(self, when_away: WhenAway) -> None:
        clock = ManualClock()
        self.store = Store(clock.wall_s)
        self.admission = SharedAdmission(clock, "g", unpriced=UnpricedPolicy.UNRATED)
        self.admission.begin(self.store.begin("g"), 0)
        self.keeper = LeaseKeeper(
            admission=self.admission,
            limits=self.store,
            ledger=EmptyLedger(),
            clock=clock,
            durable_sequence=lambda: 0,
            when_away=when_away,
        )
        self.used_tokens = 0
        self._count = 0

    async def use(self) -> None:
        """One request that uses all that it may."""
        preparing = asyncio.create_task(
            self.keeper.prepare(
                ids,
                limits,
                price=None,
                credit_floor_nanousd=None,
                prompt_tokens_max=each_tokens,
                output_tokens_max=0,
            )
        )
        for _ in range(exchanges_max):
            await asyncio.sleep(0)
            if preparing.done():
                break
            await self.keeper.exchange_once()
        await preparing
        self._count += 1
        held = self.admission.reserve(
            request_id=f"r{self._count}",
            tenant_id="ten_a",
            project_id="prj_a",
            key_id="key_a",
            model="m",
            price=None,
            credit_floor_nanousd=None,
            prompt_tokens_max=each_tokens,
            output_tokens_max=0,
            limits=limits,
        )
        self.admission.settle(held, TokenUsage(each_tokens), Outcome.FINISHED)
        self.used_tokens += each_tokens


async def until_refused(gateway: Gateway) -> int:
    """How many more requests are admitted before one is refused for the store's absence."""
    for count in range(requests + 1):
        try:
            await gateway.use()
        except Unavailable:
            return count
    raise AssertionError("nothing was refused")


async def test_what_is_leased_is_spent_and_no_more() -> None:
    gateway = Gateway(WhenAway.SPEND_LEASES)
    await gateway.use()
    assert not gateway.keeper.is_degraded
    gateway.store.is_away = True
    await gateway.keeper.exchange_once()
    assert gateway.keeper.is_degraded
    await until_refused(gateway)
    assert gateway.used_tokens <= requests * each_tokens
    gateway.store.is_away = False
    await gateway.keeper.exchange_once()
    assert not gateway.keeper.is_degraded
    while gateway.used_tokens < requests * each_tokens:
        await gateway.use()
    with pytest.raises(RateLimited):
        await gateway.use()
    assert gateway.used_tokens == requests * each_tokens


async def test_or_nothing_is_admitted_as_configured() -> None:
    gateway = Gateway(WhenAway.REFUSE)
    await gateway.use()
    gateway.store.is_away = True
    await gateway.keeper.exchange_once()
    assert await until_refused(gateway) == 0
    gateway.store.is_away = False
    await gateway.keeper.exchange_once()
    await gateway.use()
    assert gateway.used_tokens == 2 * each_tokens
