import os
from pathlib import Path

from headrace.launchers import log_file


def test_the_last_line_is_the_last_with_text(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("first\n  second  \n\n   \n")

    assert log_file.last_line(path) == "second"


def test_lines_of_an_earlier_start_are_not_the_last(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("of the first start\n")
    start_bytes = log_file.size_bytes(path)

    assert log_file.last_line(path, start_bytes) == ""
    with path.open("a") as file:
        file.write("of the second\n")
    assert log_file.last_line(path, start_bytes) == "of the second"


def test_a_line_is_bounded_and_bad_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff" + b"x" * 5_000 + b"\n")
    line = log_file.last_line(path)

    assert len(line) == log_file.line_length_max
    assert line.startswith("\N{REPLACEMENT CHARACTER}x")


def test_a_missing_file_has_no_line_and_no_size(tmp_path: Path) -> None:
    assert log_file.last_line(tmp_path / "none") == ""
    assert log_file.size_bytes(tmp_path / "none") == 0
    log_file.cut_if_long(tmp_path / "none")


def test_a_file_that_is_too_long_keeps_its_newest_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    descriptor = log_file.open_for_child(path)  # as a child holds it, through the cut
    line_count = log_file.log_bytes_max // 16 + 1
    os.write(descriptor, b"".join(b"line %010d\n" % number for number in range(line_count)))

    log_file.cut_if_long(path)
    os.write(descriptor, b"after the cut\n")
    os.close(descriptor)
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= log_file.log_bytes_kept + 14
    assert lines[-2:] == [f"line {line_count - 1:010d}", "after the cut"]
    assert all(len(line) == 15 for line in lines[:-1])


def test_a_file_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * log_file.log_bytes_max)
    log_file.cut_if_long(path)

    assert log_file.size_bytes(path) == log_file.log_bytes_max


def test_a_log_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    os.close(log_file.open_for_child(path))

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
