"""Reading a journal bit by bit gives what is there, whatever the bits and the damage."""

from pathlib import Path

import pytest

from headrace.ledger import journal_reader
from headrace.ledger.frames import encode_frame
from headrace.ledger.journal_reader import JournalReader
from headrace.ledger.reservation import (
    Checkpoint,
    Outcome,
    Settle,
    Settlement,
    TokenUsage,
    UsageSource,
)
from headrace.ledger.segments import encoder, segment_path


def frame(sequence: int) -> bytes:
    settlement = Settlement(
        request_id=f"r{sequence}",
        tenant_id="t",
        project_id="p",
        key_id="k",
        model="m",
        usage=TokenUsage(),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id=None,
        charge=None,
        settle_time=0.0,
    )
    return encode_frame(sequence, encoder.encode(Settle(settlement)))


def other_frame(sequence: int) -> bytes:
    return encode_frame(sequence, encoder.encode(Checkpoint(f"r{sequence}", TokenUsage())))


def sequences(reader: JournalReader, up_to: int = 10_000, settlements_max: int = 3) -> list[int]:
    found: list[int] = []
    while records := reader.read(up_to, settlements_max):
        assert len(records) <= settlements_max
        found += [numbered.sequence for numbered in records]
    return found


def write(directory: Path, first: int, data: bytes) -> None:
    segment_path(directory, first).write_bytes(data)


def test_segments_are_read_across_their_borders(tmp_path: Path) -> None:
    write(tmp_path, 1, b"".join(map(frame, range(1, 6))))
    write(tmp_path, 6, b"".join(map(frame, range(6, 9))))
    write(tmp_path, 9, b"")
    assert sequences(JournalReader(tmp_path)) == list(range(1, 9))


def test_reading_stops_at_what_is_durable_and_goes_on_later(tmp_path: Path) -> None:
    write(tmp_path, 1, b"".join(map(frame, range(1, 6))))
    reader = JournalReader(tmp_path)
    assert sequences(reader, up_to=2) == [1, 2]
    assert sequences(reader, up_to=2) == []
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(frame(6))
    assert sequences(reader, up_to=6) == [3, 4, 5, 6]


def test_a_record_that_was_written_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, 1, b"".join(map(frame, (1, 2, 3))))
    write(tmp_path, 3, b"".join(map(frame, (3, 4))))
    assert sequences(JournalReader(tmp_path)) == [1, 2, 3, 4]


def test_damage_and_blank_tails_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1, frame(1) + b"\xff" * 200 + frame(3) + bytes(500))
    write(tmp_path, 4, frame(4)[:-3])
    write(tmp_path, 5, frame(5))
    assert sequences(JournalReader(tmp_path)) == [1, 3, 5]


@pytest.mark.parametrize("damage_bytes", [100, 1_000, 5_000])
def test_damage_larger_than_what_is_read_at_once_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage_bytes: int
) -> None:
    monkeypatch.setattr(journal_reader, "frame_bytes_max", 512)
    monkeypatch.setattr(journal_reader, "chunk_bytes", 1024)
    good = b"".join(map(frame, range(1, 30)))
    write(tmp_path, 1, good + b"\xff" * damage_bytes + b"".join(map(frame, range(31, 60))))
    assert sequences(JournalReader(tmp_path), settlements_max=7) == [*range(1, 30), *range(31, 60)]


def test_a_record_of_another_version_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1, frame(1) + encode_frame(2, b"\xc1 unreadable") + frame(3))
    assert sequences(JournalReader(tmp_path)) == [1, 3]


def test_other_records_are_passed_and_counted(tmp_path: Path) -> None:
    write(tmp_path, 1, other_frame(1) + frame(2) + other_frame(3) + other_frame(4))
    reader = JournalReader(tmp_path)
    assert sequences(reader, up_to=4) == [2]
    assert reader.sequence == 4


def test_an_empty_directory_holds_nothing(tmp_path: Path) -> None:
    assert sequences(JournalReader(tmp_path)) == []


def test_a_damaged_record_does_not_hide_that_the_next_is_not_durable_yet(tmp_path: Path) -> None:
    write(tmp_path, 1, frame(1) + b"\xff" * 40 + frame(3))
    reader = JournalReader(tmp_path)
    assert sequences(reader, up_to=2) == [1]
    assert sequences(reader, up_to=3) == [3]


def test_a_segment_that_was_read_may_be_deleted(tmp_path: Path) -> None:
    write(tmp_path, 1, frame(1))
    reader = JournalReader(tmp_path)
    assert sequences(reader, up_to=1) == [1]
    write(tmp_path, 2, frame(2))
    segment_path(tmp_path, 1).unlink()
    assert sequences(reader, up_to=2) == [2]
