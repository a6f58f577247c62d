import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.admin_client import find_address
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.supervisor import data_dir


@pytest.fixture
def files(tmp_path: Path) -> PlatformFiles:
    return PlatformFiles(tmp_path / "state" / "data")


def test_a_directory_is_made_for_its_owner_alone(files: PlatformFiles) -> None:
    with data_dir.locked(files):
        made = (files.data_dir, files.run_dir, files.logs_dir)
        assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3
        assert files.lock.read_text() == f"{os.getpid()}\n"


def test_a_locked_directory_is_refused_with_the_owners_number(files: PlatformFiles) -> None:
    with (
        data_dir.locked(files),
        pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}"),
        data_dir.locked(files),
    ):
        pass


def test_a_directory_is_free_again_afterwards(files: PlatformFiles) -> None:
    with data_dir.locked(files):
        pass
    with data_dir.locked(files):
        pass


def test_what_still_ends_after_a_killed_owner_is_waited_for(files: PlatformFiles) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
        pass
    took = threading.Event()

    def take() -> None:
        with data_dir.locked(files):
            took.set()

    with data_dir.locked(files) as held_by_a_descendant:
        os.pwrite(held_by_a_descendant, f"{ended.pid}\n".encode(), 0)
        taker = threading.Thread(target=take)
        taker.start()
        assert not took.is_set()
    taker.join()
    assert took.is_set()


def test_a_place_that_is_no_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(ConfigurationError, match="--data-dir"),
        data_dir.locked(PlatformFiles(tmp_path / "file")),
    ):
        pass


def test_the_pepper_is_made_once_and_kept(files: PlatformFiles) -> None:
    with data_dir.locked(files):
        pepper = data_dir.ensure_pepper(files)

        assert len(pepper) == 32
        assert data_dir.ensure_pepper(files) == pepper
        assert files.pepper.stat().st_mode & 0o777 == 0o600


def test_a_damaged_pepper_is_never_replaced(files: PlatformFiles) -> None:
    with data_dir.locked(files):
        files.pepper.write_bytes(b"short")

        with pytest.raises(ConfigurationError, match="backup"):
            data_dir.ensure_pepper(files)
        assert files.pepper.read_bytes() == b"short"


def test_each_start_has_its_own_token_which_commands_find(files: PlatformFiles) -> None:
    with data_dir.locked(files):
        first = data_dir.write_admin_address(files, "http://127.0.0.1:1")
        second = data_dir.write_admin_address(files, "http://127.0.0.1:2")

        assert first.token != second.token
        assert find_address(None, None, files.data_dir) == second


def test_a_private_file_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "ready.json"
    data_dir.write_private(path, b"old")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space"):
        data_dir.write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
