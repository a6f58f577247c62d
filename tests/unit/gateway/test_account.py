"""One settlement a request, whatever is called how often."""

from pathlib import Path

from headrace.gateway.account import Account, checkpoint_interval_s
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.sim.clock import ManualClock
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
    meter = Meter(Admission(clock), journal, clock)
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
