"""Locks that say who uses a file, and the time of its last use."""

import os
from pathlib import Path

from headrace.weights.file_use import (
    hold_for_life,
    is_in_use,
    mark_used,
    remove_unless_used,
    used_time_s,
)


def test_what_is_held_is_not_removed(tmp_path: Path) -> None:
    file, directory = tmp_path / "file", tmp_path / "directory"
    file.write_text("model")
    directory.mkdir()
    for path in (file, directory):
        assert not is_in_use([path])
        assert hold_for_life(path)
        assert is_in_use([path])
        assert not remove_unless_used([path])
        assert path.exists()


def test_one_that_is_held_keeps_all_of_an_item(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("part")
    hold_for_life(paths[1])
    assert not remove_unless_used(paths)
    assert all(path.exists() for path in paths)


def test_what_is_gone_cannot_be_held(tmp_path: Path) -> None:
    assert not hold_for_life(tmp_path / "gone")


def test_use_sets_the_time_of_use_and_not_that_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("model")
    os.utime(file, (5.0, 7.0))
    assert used_time_s(file) == 7.0
    mark_used(file)
    assert used_time_s(file) > 7.0
    assert file.stat().st_mtime == 7.0
    assert used_time_s(tmp_path / "gone") == 0.0
