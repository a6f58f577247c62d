"""Writing goes on when the disk does not, and says how well."""

from pathlib import Path

import pytest

from headrace.ledger.frames import encode_frame
from headrace.ledger.segment_writer import SegmentWriter, WriterState
from headrace.ledger.segments import emergency_name, list_segments
from headrace.sim.disk import BoundedDisk

record = encode_frame(1, b"x" * 80)  # 100 bytes


def make(directory: Path, disk: BoundedDisk, segment_bytes: int = 1_000) -> SegmentWriter:
    return SegmentWriter(
        directory, disk, segment_bytes=segment_bytes, emergency_bytes=500, next_sequence=1
    )


def written(directory: Path) -> bytes:
    return b"".join(path.read_bytes().rstrip(b"\0") for path in list_segments(directory))


def test_a_full_segment_is_followed_by_one_named_by_its_first_sequence(tmp_path: Path) -> None:
    writer = make(tmp_path, BoundedDisk(10_000), segment_bytes=250)
    for sequence in range(1, 6):
        writer.write(sequence, record)
    assert [int(path.stem) for path in list_segments(tmp_path)] == [1, 3, 5]
    assert written(tmp_path) == record * 5
    writer.close()


def test_a_batch_larger_than_a_segment_is_written_whole(tmp_path: Path) -> None:
    writer = make(tmp_path, BoundedDisk(10_000), segment_bytes=50)
    writer.write(1, record * 3)
    assert written(tmp_path) == record * 3
    writer.close()


def test_a_full_disk_turns_to_the_space_set_aside(tmp_path: Path) -> None:
    writer = make(tmp_path, BoundedDisk(500 + 250))
    for sequence in range(1, 5):
        writer.write(sequence, record)
    assert writer.state is WriterState.EMERGENCY
    assert not (tmp_path / emergency_name).exists()
    assert written(tmp_path) == record * 4
    writer.close()


def test_with_no_room_at_all_the_batch_is_refused_and_can_be_written_later(tmp_path: Path) -> None:
    disk = BoundedDisk(500 + 100)
    writer = make(tmp_path, disk)
    for sequence in range(1, 7):
        writer.write(sequence, record)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            writer.write(7, record)
        assert writer.state is WriterState.STALLED
    disk.free_bytes = 100
    writer.write(7, record)
    assert written(tmp_path) == record * 7
    writer.close()


def test_space_again_brings_it_back_to_normal(tmp_path: Path) -> None:
    disk = BoundedDisk(500 + 100)
    writer = make(tmp_path, disk)
    writer.write(1, record)
    writer.write(2, record)
    assert not writer.restore()
    disk.free_bytes = 5_000
    assert writer.restore()
    assert writer.state is WriterState.WRITING
    writer.write(3, record)
    assert (tmp_path / emergency_name).stat().st_size == 500
    assert [int(path.stem) for path in list_segments(tmp_path)] == [1, 2, 3]
    assert written(tmp_path) == record * 3
    writer.close()


def test_a_segment_whose_sync_failed_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BoundedDisk(10_000)
    writer = make(tmp_path, disk)
    writer.write(1, record)

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "sync", fails)
    with pytest.raises(OSError, match="Input/output"):
        writer.write(2, record)
    monkeypatch.undo()
    writer.write(2, record)
    first, second = list_segments(tmp_path)
    assert first.read_bytes() == record
    assert second.read_bytes() == record
    writer.close()


def test_every_file_is_private(tmp_path: Path) -> None:
    make(tmp_path, BoundedDisk(10_000)).close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
