"""The journal: durable when it says so, bounded, and honest about a bad disk."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, Unavailable
from headrace.ledger.admission import settle_reservation
from headrace.ledger.disk import PosixDisk
from headrace.ledger.frames import scan
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.reservation import (
    Checkpoint,
    Outcome,
    Reservation,
    Reserve,
    Settle,
    TokenUsage,
    UsageSource,
)
from headrace.ledger.segment_writer import WriterState
from headrace.ledger.segments import (
    JournalRecord,
    Numbered,
    emergency_name,
    list_segments,
    read_segment,
)
from headrace.sim.clock import ManualClock
from headrace.sim.disk import BoundedDisk

OpenJournal = Callable[..., Journal]
MakeReservation = Callable[..., Reservation]
timeout_s = 30.0
small = JournalLimits(segment_bytes=2_000, emergency_bytes=4_000, retry_s=0.001)


def settled(held: Reservation) -> Settle:
    return Settle(
        settle_reservation(
            held, TokenUsage(5, 0, 5), Outcome.FINISHED, UsageSource.ENGINE, held.reserve_time
        )
    )


def read_all(journal: Journal) -> list[Numbered]:
    return [
        numbered
        for path in list_segments(journal.directory)
        for numbered in read_segment(path).records
    ]


def append_durably(journal: Journal, *records: JournalRecord) -> int:
    sequence = [journal.append(record) for record in records][-1]
    journal.wait_durable(sequence, timeout_s)
    return sequence


def wait_until_written(journal: Journal) -> None:
    with journal._progress:
        assert journal._progress.wait_for(lambda: not journal.is_stalled, timeout_s)


def test_what_is_durable_is_read_back_in_order(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    held = reservation("r1")
    records: list[JournalRecord] = [
        Reserve(held),
        Checkpoint("r1", TokenUsage(5, 0, 2)),
        settled(held),
    ]
    assert append_durably(journal, *records) == 3
    assert read_all(journal) == [Numbered(i, record) for i, record in enumerate(records, 1)]


async def test_an_event_loop_waits_without_blocking(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()

    async def one(number: int) -> int:
        sequence = journal.append(Reserve(reservation(f"r{number}")))
        await journal.durable(sequence)
        assert journal.durable_sequence >= sequence
        return sequence

    assert await asyncio.gather(*map(one, range(50))) == list(range(1, 51))
    await journal.durable(1)  # long since


class SlowDisk(PosixDisk):
    """Its syncs wait until they are let go, and fail as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.may_sync = threading.Event()
        self._failures = failures

    def sync(self, descriptor: int) -> None:
        self.may_sync.wait(timeout_s)
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


async def test_a_record_is_out_of_this_process_before_any_sync(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = SlowDisk()
    journal = open_journal(disk)
    held = [reservation(f"r{number}") for number in range(3)]
    for one in held:
        journal.append(Reserve(one))
        assert journal.is_accepted
        await journal.accepted()
    assert [item.record for item in read_all(journal)] == [Reserve(one) for one in held]
    assert journal.durable_sequence == 0
    disk.may_sync.set()
    await journal.durable(3)


async def test_what_a_failed_sync_leaves_in_doubt_is_written_anew(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = SlowDisk(failures=1)
    journal = open_journal(disk)
    held = [reservation(f"r{number}") for number in range(4)]
    for one in held[:3]:
        journal.append(Reserve(one))
    disk.may_sync.set()
    await journal.durable(3)
    journal.append(Reserve(held[3]))
    await journal.durable(4)
    assert read_all(journal) == [Numbered(i, Reserve(one)) for i, one in enumerate(held, 1)]
    journal.close()
    again = open_journal()
    assert [running.reservation for running in again.running()] == held
    assert again.problems == []


async def test_a_record_that_no_disk_takes_is_not_accepted(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = BoundedDisk(4_000 + 100)
    journal = open_journal(disk)
    for number in range(60):
        journal.append(settled(reservation(f"r{number}")))
    with pytest.raises(Unavailable, match="kept in memory"):
        await journal.accepted()
    assert not journal.is_accepted
    disk.free_bytes = 10**6
    wait_until_written(journal)


def test_what_nobody_waits_for_is_synced_soon(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    journal.append(Reserve(reservation("r1")))
    with journal._progress:
        assert journal._progress.wait_for(lambda: journal.durable_sequence == 1, timeout_s)


def test_one_sync_covers_many_records(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = BoundedDisk(10**9)
    journal = open_journal(disk, small._replace(segment_bytes=10**7))
    with journal._lock:  # the writer cannot start meanwhile
        for number in range(500):
            record = Reserve(reservation(f"r{number}"))
            journal._append(record, b"payload")
    journal.wait_durable(500, timeout_s)
    assert disk.syncs <= 2


def test_a_new_process_finds_who_was_running_and_what_they_used(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    first, second = reservation("r1"), reservation("r2")
    append_durably(
        journal,
        Reserve(first),
        Reserve(second),
        Checkpoint("r2", TokenUsage(10, 0, 3)),
        settled(first),
        Checkpoint("r2", TokenUsage(10, 0, 7)),
    )
    journal.close()
    again = open_journal()
    assert [(item.reservation, item.usage) for item in again.running()] == [
        (second, TokenUsage(10, 0, 7))
    ]
    assert append_durably(again, settled(second)) == 6
    assert again.running() == []
    assert again.problems == []


def test_sequences_go_on_when_every_segment_was_shipped(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    held = reservation("r1")
    last = append_durably(journal, Reserve(held), settled(held))
    journal.close()
    journal = open_journal()
    journal.trim(last)
    assert read_all(journal) == []
    journal.close()
    assert append_durably(open_journal(), Reserve(reservation("r2"))) == last + 1


def test_the_name_in_the_ledger_stays_with_the_directory(open_journal: OpenJournal) -> None:
    journal = open_journal()
    name = journal.journal_id
    journal.close()
    assert open_journal().journal_id == name


def test_a_second_process_is_kept_out(open_journal: OpenJournal) -> None:
    open_journal()
    with pytest.raises(ConfigurationError, match="another process writes the journal"):
        open_journal()


def test_the_directory_and_its_files_are_private(open_journal: OpenJournal) -> None:
    directory = open_journal().directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_shipped_segments_go_and_running_requests_are_carried_forward(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    long_one = reservation("long")
    append_durably(journal, Reserve(long_one), Checkpoint("long", TokenUsage(9, 1, 4)))
    for number in range(40):
        held = reservation(f"r{number}")
        last = append_durably(journal, Reserve(held), settled(held))
    assert len(list_segments(journal.directory)) > 5
    journal.trim(last)
    assert len(list_segments(journal.directory)) <= 2
    journal.close()
    (running,) = open_journal().running()
    assert (running.reservation, running.usage) == (long_one, TokenUsage(9, 1, 4))


def test_nothing_is_deleted_before_it_is_shipped(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    for number in range(40):
        held = reservation(f"r{number}")
        append_durably(journal, Reserve(held), settled(held))
    journal.trim(31)
    assert {item.sequence for item in read_all(journal)} >= set(range(32, 81))


def test_a_ledger_that_is_far_behind_stops_admission_and_not_settlements(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal(None, small._replace(total_bytes=3_000))
    held = [reservation(f"r{number}") for number in range(5)]
    append_durably(journal, *(Reserve(item) for item in held))
    append_durably(journal, *(settled(item) for item in held))
    assert not journal.is_healthy
    with pytest.raises(Unavailable, match="the ledger has not taken; check the database"):
        journal.append(Reserve(reservation("one too many")))
    last = append_durably(journal, settled(held[0]))
    journal.close()
    journal = open_journal(None, small._replace(total_bytes=3_000))
    journal.trim(last)
    assert journal.is_healthy


def test_a_full_disk_stops_admission_and_keeps_every_settlement(
    open_journal: OpenJournal, reservation: MakeReservation, clock: ManualClock
) -> None:
    disk = BoundedDisk(4_000 + 1_500)
    journal = open_journal(disk)
    held: list[Reservation] = []
    while journal.is_healthy:
        held.append(reservation(f"r{len(held)}"))
        append_durably(journal, Reserve(held[-1]))
    with pytest.raises(Unavailable, match="full or fails") as raised:
        journal.append(Reserve(reservation("one too many")))
    assert raised.value.retry_after_s
    append_durably(journal, *(settled(item) for item in held))
    assert {item.record for item in read_all(journal)} == {
        *(Reserve(item) for item in held),
        *(settled(item) for item in held),
    }
    disk.free_bytes = 100_000
    clock.advance(1.0)
    append_durably(journal, Checkpoint("gone", TokenUsage()), settled(held[0]))
    assert journal.is_healthy
    assert (journal.directory / emergency_name).exists()
    append_durably(journal, Reserve(reservation("next")))


def test_settlements_wait_in_memory_when_there_is_no_space_at_all(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = BoundedDisk(100 + 4_000)
    journal = open_journal(disk)
    held = [reservation(f"r{number}") for number in range(60)]
    sequence = [journal.append(settled(item)) for item in held][-1]
    with pytest.raises(Unavailable, match="kept in memory"):
        journal.wait_durable(sequence, timeout_s)
    with pytest.raises(Unavailable, match="full or fails"):
        journal.append(Reserve(reservation("no")))
    disk.free_bytes = 10**6
    journal._progress.acquire()
    assert journal._progress.wait_for(lambda: journal.durable_sequence >= sequence, timeout_s)
    journal._progress.release()
    assert [item.record for item in read_all(journal)] == [settled(item) for item in held]


async def test_those_who_wait_are_told_of_a_disk_that_takes_nothing(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = BoundedDisk(4_000)
    journal = open_journal(disk)
    for number in range(60):
        sequence = journal.append(settled(reservation(f"r{number}")))
    with pytest.raises(Unavailable, match="kept in memory"):
        await journal.durable(sequence)
    disk.free_bytes = 10**6
    wait_until_written(journal)


def test_checkpoints_are_dropped_on_a_full_disk_and_remembered_in_memory(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    disk = BoundedDisk(4_000 + 300)
    journal = open_journal(disk)
    append_durably(journal, Reserve(reservation("r1")))
    sequence = append_durably(journal, settled(reservation("other")))
    assert not journal.is_healthy
    assert journal.append(Checkpoint("r1", TokenUsage(3, 0, 1))) == sequence
    assert journal.running()[0].usage == TokenUsage(3, 0, 1)


def test_closing_writes_what_is_queued(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    for number in range(100):
        journal.append(Reserve(reservation(f"r{number}")))
    journal.close()
    journal.close()
    assert len(open_journal().running()) == 100


def test_closing_on_a_dead_disk_says_what_is_lost(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal(BoundedDisk(4_000))
    for number in range(60):
        journal.append(settled(reservation(f"r{number}")))
    with pytest.raises(Unavailable):
        journal.close()


def test_a_disk_that_is_full_from_the_start_is_named(open_journal: OpenJournal) -> None:
    with pytest.raises(ConfigurationError, match=r"journal .* cannot be written.*free some space"):
        open_journal(BoundedDisk(10))
    open_journal(BoundedDisk(10_000))


def test_a_torn_tail_is_cut_and_not_reported(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    append_durably(journal, Reserve(reservation("r1")), Reserve(reservation("r2")))
    journal.close()
    (segment,) = list_segments(journal.directory)
    segment.write_bytes(segment.read_bytes()[:-7])
    again = open_journal()
    assert [item.reservation.request_id for item in again.running()] == ["r1"]
    assert again.problems == []


def test_damage_in_the_middle_is_reported_quarantined_and_costs_one_record(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    append_durably(journal, *(Reserve(reservation(f"r{number}")) for number in range(3)))
    journal.close()
    (segment,) = list_segments(journal.directory)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    again = open_journal()
    assert [item.reservation.request_id for item in again.running()] == ["r0", "r2"]
    (problem,) = again.problems
    assert "damaged at bytes" in problem
    (copy,) = (journal.directory / "quarantine").iterdir()
    assert copy.read_bytes() == data


def test_a_missing_segment_is_reported(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    for number in range(30):
        append_durably(journal, Reserve(reservation(f"r{number}")))
    journal.close()
    list_segments(journal.directory)[1].unlink()
    (problem,) = open_journal().problems
    assert "are missing" in problem


def test_a_stray_file_is_left_alone(open_journal: OpenJournal, tmp_path: Path) -> None:
    journal = open_journal()
    journal.close()
    (journal.directory / "notes.txt").write_text("mine")
    assert open_journal().problems == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot be written: Not a directory"):
        Journal(tmp_path / "file" / "journal")


def test_threads_append_without_losing_or_reordering(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()

    def work(worker: int) -> None:
        for number in range(100):
            append_durably(journal, Reserve(reservation(f"{worker}-{number}")))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_all(journal)
    assert [numbered.sequence for numbered in records] == list(range(1, 601))
    assert len(journal.running()) == 600


def test_the_status_says_how_it_is_doing(
    open_journal: OpenJournal, reservation: MakeReservation
) -> None:
    journal = open_journal()
    held = reservation("r1")
    append_durably(journal, Reserve(held), Reserve(reservation("r2")), settled(held))
    status = journal.status()
    assert (status.state, status.running_requests) == (WriterState.WRITING, 1)
    assert status.sequence == status.durable_sequence == 3
    assert status.pending_records == 0
    assert status.total_bytes == sum(
        scan(path.read_bytes()).end for path in list_segments(journal.directory)
    )
