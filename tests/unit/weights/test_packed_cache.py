"""Where packed weights are kept, what makes room for them, and who may remove what."""

import fcntl
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.weights import packed_cache
from headrace.weights.cache import ModelCache
from headrace.weights.packed_cache import packed_path, path_of_rank, prune_packed


def kept(cache: ModelCache, name: str, used_at: float) -> Path:
    path = packed_path(cache, name, "pairs-1", 100)
    assert path is not None
    path.write_bytes(b"weights")
    os.utime(path, (used_at, used_at))
    return path


def test_a_model_and_a_layout_have_one_place(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    path = packed_path(cache, "abc", "pairs-1", 100)
    assert path == tmp_path / "packed" / "abc-pairs-1.weights"
    assert packed_path(cache, "abc", "fours-1", 100) != path


def test_those_not_used_for_longest_make_room(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    files = [kept(cache, f"model{n}", used_at=1000.0 + n) for n in range(8)]
    packed_path(cache, "model0", "pairs-1", 100)  # loaded again: the last used now
    packed_path(cache, "another", "pairs-1", 100)
    assert [file.exists() for file in files] == [True, False, *[True] * 6]


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=199))
    assert packed_path(ModelCache(tmp_path), "abc", "pairs-1", 100) is None


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file where the directory should be")
    assert packed_path(ModelCache(tmp_path), "abc", "pairs-1", 100) is None


def test_what_a_writer_left_is_removed_and_what_one_writes_is_not(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    directory = tmp_path / "packed"
    directory.mkdir()
    left, written = directory / "a.weights.1.tmp", directory / "b.weights.2.tmp"
    left.write_bytes(b"half")
    with written.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert prune_packed(cache, packed_cache.packed_files_max) == 1
        assert [left.exists(), written.exists()] == [False, True]


def test_a_pipe_among_what_writers_left_is_removed_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "packed" / "a.weights.1.tmp"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    assert prune_packed(ModelCache(tmp_path), packed_cache.packed_files_max) == 1
    assert not pipe.exists()


def test_what_a_process_has_mapped_stays(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    mapped, free = kept(cache, "abc", 1.0), kept(cache, "def", 2.0)
    with mapped.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert prune_packed(cache, files_max=0) == 1
    assert [mapped.exists(), free.exists()] == [True, False]


def test_each_rank_has_a_file_and_they_stay_together(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    path = packed_path(cache, "abc", "pairs-1", 100, ranks=2)
    assert path is not None
    parts = [path_of_rank(path, rank, 2) for rank in range(2)]
    assert [part.name for part in parts] == [f"abc-pairs-1-{rank}of2.weights" for rank in (0, 1)]
    assert path_of_rank(path, 0, 1) == path
    for part in parts:
        part.write_bytes(b"")
    for name in "defghijk":  # one model more than fit beside both parts
        other = packed_path(cache, name, "pairs-1", 100)
        assert other is not None
        other.write_bytes(b"")
        packed_path(cache, "abc", "pairs-1", 100, ranks=2)
    assert all(part.exists() for part in parts)
