"""The money side of a gateway, from admission over a crash to the book."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Conflict, PaymentRequired, Unavailable
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage, UsageSource
from headrace.ledger.shipper import Shipper
from headrace.sim.clock import ManualClock
from headrace.sim.disk import BoundedDisk
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import Database, LedgerSnapshot

OpenJournal = Callable[..., Journal]
worst_case = 401
timeout_s = 30.0


class Gateway:
    """One life of a gateway process."""

    def __init__(self, journal: Journal, database: Database, clock: ManualClock) -> None:
        self.journal = journal
        self.admission = Admission(clock)
        self.meter = Meter(self.admission, journal)
        self.recovered = self.meter.recover(database.ledger.snapshot())
        self.shipper = Shipper(journal, database.ledger, self.admission)

    def flush(self, sequence: int) -> None:
        self.journal.wait_durable(sequence, timeout_s)
        self.shipper.drain()


@pytest.fixture
def start(
    open_journal: OpenJournal, database: Database, clock: ManualClock
) -> Callable[..., Gateway]:
    database.ledger.credit("ten_a", 1_000, "first", "paid")

    def make(disk: BoundedDisk | None = None) -> Gateway:
        return Gateway(open_journal(disk), database, clock)

    return make


@pytest.fixture
def reserve(price: PriceVersion) -> Callable[..., Reservation]:
    def ask(gateway: Gateway, request_id: str, **changes: object) -> Reservation:
        arguments: dict[str, Any] = {
            "request_id": request_id,
            "tenant_id": "ten_a",
            "project_id": "prj_a",
            "key_id": "key_a",
            "model": "small",
            "price": price,
            "credit_floor_nanousd": 0,
            "prompt_tokens_max": 10,
            "output_tokens_max": 10,
            **changes,
        }
        return gateway.meter.reserve(**arguments)

    return ask


Start = Callable[..., Gateway]
Ask = Callable[..., Reservation]


async def test_a_request_ends_in_one_settlement_in_the_book(
    start: Start, reserve: Ask, database: Database
) -> None:
    gateway = start()
    held = reserve(gateway, "r1")
    sequence = gateway.meter.settle(held, TokenUsage(10, 0, 2), Outcome.FINISHED)
    await gateway.meter.durable(sequence)
    gateway.shipper.drain()
    assert database.ledger.balances() == {"ten_a": 840}
    assert gateway.admission.available_nanousd("ten_a") == 840
    assert database.ledger.check() == []
    with pytest.raises(Conflict):
        gateway.meter.settle(held, TokenUsage(10, 0, 2), Outcome.FINISHED)


@pytest.mark.parametrize("tokens", [10**10, 2**63, 2**64 - 1])
def test_an_engine_that_reports_nonsense_does_not_block_the_book(
    start: Start, reserve: Ask, database: Database, tokens: int
) -> None:
    gateway = start()
    dear = PriceVersion(
        "prb_2",
        Price(
            input_nanousd_per_million=10**8,
            cached_input_nanousd_per_million=0,
            output_nanousd_per_million=10**18,
        ),
    )
    held = reserve(gateway, "r1", price=dear, prompt_tokens_max=5, output_tokens_max=0)
    usage = TokenUsage(tokens, tokens, tokens)
    gateway.flush(gateway.meter.settle(held, usage, Outcome.FINISHED))
    assert database.ledger.balances() == {"ten_a": 1_000 - held.amount_nanousd}
    assert database.ledger.usage()[0].completion_tokens == 10**9
    assert database.ledger.check() == []


def test_available_credit_is_the_same_at_each_stage_of_shipping(start: Start, reserve: Ask) -> None:
    gateway = start()
    held = reserve(gateway, "r1")
    sequence = gateway.meter.settle(held, TokenUsage(10, 0, 0), Outcome.FINISHED)
    seen = [gateway.admission.available_nanousd("ten_a")]
    gateway.shipper.refresh()
    seen.append(gateway.admission.available_nanousd("ten_a"))
    gateway.flush(sequence)
    seen.append(gateway.admission.available_nanousd("ten_a"))
    assert seen == [900, 900, 900]


def test_a_crash_settles_what_ran_at_its_last_checkpoint(
    start: Start, reserve: Ask, database: Database
) -> None:
    before = start()
    first, second = reserve(before, "r1"), reserve(before, "r2")
    before.meter.checkpoint(first, TokenUsage(10, 5, 3))
    before.journal.close()
    after = start()
    assert {item.request_id: item.usage for item in after.recovered} == {
        "r1": TokenUsage(10, 5, 3),
        "r2": TokenUsage(),
    }
    assert {(item.outcome, item.source) for item in after.recovered} == {
        (Outcome.FAILED, UsageSource.RECOVERED)
    }
    assert after.admission.available_nanousd("ten_a") == 1_000 - 5 * 10 - 5 - 3 * 30
    after.flush(5)
    assert database.ledger.balances() == {"ten_a": 1_000 - 145}
    assert second.amount_nanousd == worst_case
    after.journal.close()
    assert start().recovered == []


def test_what_an_engine_still_knows_beats_the_last_checkpoint(
    start: Start, reserve: Ask, open_journal: OpenJournal, clock: ManualClock
) -> None:
    before = start()
    before.meter.checkpoint(reserve(before, "r1"), TokenUsage(10, 0, 1))
    before.meter.checkpoint(reserve(before, "r2"), TokenUsage(10, 0, 1))
    before.journal.close()
    meter = Meter(Admission(clock), open_journal())
    recovered = meter.recover(LedgerSnapshot({}, {}), {"r1": TokenUsage(10, 0, 9)})
    assert {(item.request_id, item.usage.completion_tokens, item.source) for item in recovered} == {
        ("r1", 9, UsageSource.ENGINE),
        ("r2", 1, UsageSource.RECOVERED),
    }


def test_what_a_crash_cut_before_any_of_it_was_seen_to_go_out_is_at_the_platforms_expense(
    start: Start, reserve: Ask, open_journal: OpenJournal, clock: ManualClock
) -> None:
    before = start()
    reserve(before, "r1")
    before.meter.checkpoint(reserve(before, "r2"), TokenUsage(10, 0, 1))
    before.journal.close()
    meter = Meter(Admission(clock), open_journal())
    used = TokenUsage(10, 0, 9)
    recovered = meter.recover(LedgerSnapshot({}, {}), {"r1": used, "r2": used})
    found = {item.request_id: (item.usage, item.is_borne) for item in recovered}
    assert found == {"r1": (used, True), "r2": (used, False)}
    assert recovered[0].amount_nanousd == 0
    assert recovered[1].amount_nanousd


def test_what_was_settled_and_not_shipped_is_not_spent_again_after_a_crash(
    start: Start, reserve: Ask
) -> None:
    before = start()
    held = reserve(before, "r1")
    before.meter.settle(held, TokenUsage(10, 0, 10), Outcome.FINISHED)
    before.journal.close()
    after = start()
    assert after.admission.available_nanousd("ten_a") == 600
    reserve(after, "r2")
    with pytest.raises(PaymentRequired):
        reserve(after, "r3")


def test_a_shipped_settlement_is_not_counted_twice_after_a_restart(
    start: Start, reserve: Ask, database: Database
) -> None:
    before = start()
    held = reserve(before, "r1")
    before.flush(before.meter.settle(held, TokenUsage(10, 0, 10), Outcome.FINISHED))
    before.journal.close()
    after = start()
    assert after.admission.available_nanousd("ten_a") == 600
    after.shipper.drain()
    assert database.ledger.balances() == {"ten_a": 600}
    assert database.ledger.settlement_count() == 1


def test_a_refused_reservation_holds_nothing(start: Start, reserve: Ask) -> None:
    gateway = start(BoundedDisk(4_000 + 300))
    held = [reserve(gateway, "r1")]
    gateway.journal.wait_durable(1, timeout_s)
    sequence = gateway.meter.settle(held[0], TokenUsage(), Outcome.FAILED)
    gateway.journal.wait_durable(sequence, timeout_s)
    with pytest.raises(Unavailable, match="full or fails"):
        reserve(gateway, "r2")
    assert gateway.admission.available_nanousd("ten_a") == 1_000
    assert gateway.admission.running_count() == 0


def test_an_old_copy_of_the_journal_takes_a_new_name(
    start: Start, reserve: Ask, clock: ManualClock
) -> None:
    gateway = start()
    name = gateway.journal.journal_id
    late = LedgerSnapshot({"ten_a": 1_000}, {name: 1_000_000})
    assert gateway.meter.recover(late) == []
    assert gateway.journal.journal_id != name
    held = reserve(gateway, "r1")
    gateway.meter.settle(held, TokenUsage(10, 0, 0), Outcome.FINISHED)
    gateway.admission.load({"ten_a": 1_000}, 0)
    assert gateway.admission.available_nanousd("ten_a") == 900
