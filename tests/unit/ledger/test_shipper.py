"""From the journal to the ledger: at least once on the way, exactly once at rest."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.base.errors import Unavailable
from headrace.ledger.admission import Admission, settle_reservation
from headrace.ledger.journal import Journal
from headrace.ledger.reservation import (
    Outcome,
    Reservation,
    Reserve,
    Settle,
    Settlement,
    TokenUsage,
    UsageSource,
)
from headrace.ledger.segments import list_segments
from headrace.ledger.shipper import Shipper
from headrace.sim.clock import ManualClock
from headrace.storage import Database, LedgerSnapshot, LedgerStore

MakeReservation = Callable[..., Reservation]
timeout_s = 30.0


class UnreliableLedger:
    """A ledger that fails when told to, before or after it commits."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger = ledger
        self.failures: list[str] = []  # "before" or "after", consumed one a call
        self.recovered = threading.Event()

    def post(self, records: Sequence[Settlement], **cursor: Any) -> int:
        failure = self.failures.pop(0) if self.failures else None
        if failure == "before":
            raise Unavailable("the database is away")
        count = self._ledger.post(records, **cursor)
        if failure == "after":
            raise Unavailable("the answer was lost")
        self.recovered.set()
        return count

    def snapshot(self) -> LedgerSnapshot:
        return self._ledger.snapshot()


@pytest.fixture
def journal(open_journal: Callable[..., Journal], reservation: MakeReservation) -> Journal:
    """Forty requests, settled and durable."""
    opened = open_journal()
    for number in range(40):
        held = reservation(f"r{number}")
        opened.append(Reserve(held))
        usage = TokenUsage(5, 0, number % 7)
        settlement = settle_reservation(
            held, usage, Outcome.FINISHED, UsageSource.ENGINE, held.reserve_time
        )
        opened.wait_durable(opened.append(Settle(settlement)), timeout_s)
    return opened


def test_every_settlement_arrives_and_the_segments_go(
    journal: Journal, database: Database, clock: ManualClock
) -> None:
    shipper = Shipper(journal, database.ledger, Admission(clock))
    shipper.drain()
    assert database.ledger.settlement_count() == 40
    assert database.ledger.snapshot().sequences == {journal.journal_id: 80}
    assert len(list_segments(journal.directory)) == 1
    assert shipper.ship_once() == 0
    assert database.ledger.check() == []


@pytest.mark.parametrize("failures", [["before"] * 3, ["after"] * 3, ["before", "after"]])
def test_a_failure_loses_nothing_and_doubles_nothing(
    journal: Journal, database: Database, clock: ManualClock, failures: list[str]
) -> None:
    ledger = UnreliableLedger(database.ledger)
    ledger.failures = list(failures)
    shipper = Shipper(journal, ledger, Admission(clock))
    segments = list_segments(journal.directory)
    for _ in failures:
        with pytest.raises(Unavailable):
            shipper.ship_once()
        assert list_segments(journal.directory) == segments
    shipper.drain()
    assert database.ledger.settlement_count() == 40
    assert database.ledger.check() == []


def test_a_restarted_shipper_posts_again_and_nothing_is_doubled(
    journal: Journal, database: Database, clock: ManualClock
) -> None:
    ledger = UnreliableLedger(database.ledger)
    ledger.failures = ["after"]
    with pytest.raises(Unavailable):
        Shipper(journal, ledger, Admission(clock)).ship_once()
    assert database.ledger.settlement_count() == 40
    Shipper(journal, ledger, Admission(clock)).drain()
    assert database.ledger.settlement_count() == 40
    assert database.ledger.check() == []


def test_batches_are_bounded(
    journal: Journal, database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.ledger.poster.batch_settlements_max", 7)
    shipper = Shipper(journal, database.ledger, Admission(clock))
    counts = []
    while count := shipper.ship_once():
        counts.append(count)
    assert counts[:-1] == [14] * 5  # seven settlements and their reservations
    assert sum(counts) == 80
    assert database.ledger.settlement_count() == 40


def test_the_thread_survives_an_outage_and_drains_when_it_stops(
    journal: Journal, database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.ledger.shipper.backoff_s_min", 0.001)
    monkeypatch.setattr("headrace.ledger.poster.batch_settlements_max", 7)
    ledger = UnreliableLedger(database.ledger)
    ledger.failures = ["before"] * 4
    shipper = Shipper(journal, ledger, Admission(clock))
    stop = threading.Event()
    thread = threading.Thread(target=shipper.run, args=(stop,))
    thread.start()
    assert ledger.recovered.wait(timeout_s)
    stop.set()
    thread.join(timeout_s)
    assert not thread.is_alive()
    assert database.ledger.settlement_count() == 40
    assert shipper.last_error is None


def test_admission_learns_the_balances(
    journal: Journal, database: Database, clock: ManualClock
) -> None:
    database.ledger.credit("ten_a", 5_000, "c", "paid")
    admission = Admission(clock)
    Shipper(journal, database.ledger, admission).drain()
    assert admission.available_nanousd("ten_a") == database.ledger.balances()["ten_a"]


def test_a_journal_whose_id_a_power_cut_left_empty_gets_another_and_is_booked_once(
    journal: Journal, database: Database, clock: ManualClock, open_journal: Callable[..., Journal]
) -> None:
    Shipper(journal, database.ledger, Admission(clock)).ship_once()
    earlier = journal.journal_id
    journal.close()
    (journal.directory / "id").write_bytes(b"")
    opened = open_journal()
    assert opened.journal_id not in ("", earlier)
    Shipper(opened, database.ledger, Admission(clock)).drain()
    assert database.ledger.settlement_count() == 40
    assert database.ledger.check() == []
    opened.close()
    assert open_journal().journal_id == opened.journal_id
