"""One settlement a request, whatever is called how often."""

from pathlib import Path

import pytest

from headrace.base.errors import Unavailable
from headrace.gateway.account import Account, checkpoint_interval_s
from headrace.ledger.admission import Admission, settle_reservation
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, Settle, TokenUsage, UsageSource
from headrace.sim.clock import ManualClock
from headrace.sim.disk import BoundedDisk
from headrace.spec.prices import Price, PriceVersion

price = PriceVersion(
    "prb_1",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)


def make_account(journal: Journal, clock: ManualClock) -> Account:
    meter = Meter(Admission(clock), journal)
    reservation = meter.reserve(
        request_id="req_1",
        tenant_id="ten_1",
        project_id="prj_1",
        key_id="key_1",
        model="demo",
        price=price,
        credit_floor_nanousd=None,
        prompt_tokens_max=100,
        output_tokens_max=100,
    )
    return Account(meter, reservation, clock)


async def test_the_first_settlement_stands(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    account = make_account(journal, ManualClock())
    account.settle(Outcome.ABORTED, TokenUsage(5, 0, 3), exact=True)
    sequence = account.sequence
    account.settle(Outcome.FAILED)
    account.settle(Outcome.FINISHED, TokenUsage(9, 0, 9))
    assert (account.outcome, account.usage, account.sequence) == (
        Outcome.ABORTED,
        TokenUsage(5, 0, 3),
        sequence,
    )
    assert account.source is UsageSource.ENGINE
    assert await account.durable()
    journal.close()


async def test_nothing_may_be_sent_for_a_reservation_that_is_not_recorded(tmp_path: Path) -> None:
    limits = JournalLimits(segment_bytes=400, emergency_bytes=4_000, retry_s=0.001)
    disk = BoundedDisk(4_000 + 400)
    journal = Journal(tmp_path, limits, disk)
    clock = ManualClock()
    account = make_account(journal, clock)
    await account.recorded()
    for _ in range(60):  # no reservation is accepted by now; what came before is still to be asked
        journal.append(Settle(settle_reservation(
            account.reservation, TokenUsage(), Outcome.FAILED, UsageSource.ENGINE, clock.wall_s()
        )))  # fmt: skip
    with pytest.raises(Unavailable):
        await account.recorded()
    disk.free_bytes = 10**6
    with journal._progress:
        assert journal._progress.wait_for(lambda: not journal.is_stalled, 30.0)
    journal.close()


def test_a_crash_finds_the_last_checkpoint_and_a_restart_forgets_the_broken_attempt(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    journal = Journal(tmp_path)
    account = make_account(journal, clock)
    account.observe(TokenUsage(5, 0, 1))
    clock.advance(checkpoint_interval_s)
    account.observe(TokenUsage(5, 0, 2))
    account.observe(TokenUsage(5, 0, 3))
    assert [running.usage for running in journal.running()] == [TokenUsage(5, 0, 2)]
    account.restart()
    assert [running.usage for running in journal.running()] == [TokenUsage()]
    journal.close()
    reopened = Journal(tmp_path)
    assert [running.usage for running in reopened.running()] == [TokenUsage()]
    reopened.close()
