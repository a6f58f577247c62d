"""Nobody is refused what the store has, whoever else takes of it meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from headrace.base.errors import RateLimited
from headrace.ledger import lease_keeper
from headrace.ledger.lease_keeper import LeaseKeeper
from headrace.ledger.reservation import Outcome, TokenUsage
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
