"""The machine's disk and the bounded one of the tests keep the same promises."""

import os
import stat
from pathlib import Path

import pytest

from headrace.ledger.disk import Disk, PosixDisk
from headrace.sim.disk import BoundedDisk


@pytest.fixture(params=["posix", "bounded"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return PosixDisk() if request.param == "posix" else BoundedDisk(1_000_000)


def test_what_is_appended_is_in_the_file_in_order(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = disk.create(path)
    for part in (b"one", b"two" * 10_000, b"three"):
        disk.append(descriptor, part)
    disk.sync(descriptor)
    os.close(descriptor)
    assert path.read_bytes() == b"one" + b"two" * 10_000 + b"three"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_creating_where_an_abandoned_file_lies_starts_anew(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abandoned")
    os.close(disk.create(path))
    assert path.read_bytes() == b""


def test_a_preallocated_file_is_blank_and_can_be_written_under_a_new_name(
    disk: Disk, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    disk.preallocate(old, 5_000)
    assert old.read_bytes() == bytes(5_000)
    descriptor = disk.reuse(old, new)
    disk.append(descriptor, b"settled")
    disk.sync(descriptor)
    os.close(descriptor)
    assert not old.exists()
    assert new.read_bytes() == b"settled" + bytes(4_993)


def test_reusing_what_is_not_there_is_an_error(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.reuse(tmp_path / "old", tmp_path / "new")


def test_a_preallocation_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = BoundedDisk(4_999)
    with pytest.raises(OSError, match="No space left"):
        disk.preallocate(tmp_path / "file", 5_000)
    assert list(tmp_path.iterdir()) == []
    assert disk.free_bytes == 4_999


def test_a_full_disk_tears_a_write_and_keeps_preallocated_space(tmp_path: Path) -> None:
    disk = BoundedDisk(1_004)
    disk.preallocate(tmp_path / "kept", 1_000)
    descriptor = disk.create(tmp_path / "file")
    with pytest.raises(OSError, match="No space left"):
        disk.append(descriptor, b"too long")
    os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"too "
    descriptor = disk.reuse(tmp_path / "kept", tmp_path / "used")
    disk.append(descriptor, b"x" * 1_000)
    os.close(descriptor)
    assert (tmp_path / "used").read_bytes() == b"x" * 1_000
