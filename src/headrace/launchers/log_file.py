"""A child's output in a file that does not grow without bound.

The child appends to the file itself, so that it depends on no reader. Whoever looks after it cuts
the file in place once it is too long, which appending writers allow.
"""

import os
from pathlib import Path

log_bytes_max = 8 << 20  # of one file, between two looks at it
log_bytes_kept = 2 << 20  # after a cut
tail_bytes = 16 << 10  # enough for the last line of anything
line_length_max = 500


def open_for_child(path: Path) -> int:
    """A descriptor to append to, private to this user; the caller closes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def size_bytes(path: Path) -> int:
    """How long the file is; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def cut_if_long(path: Path) -> None:
    """Keep only the newest part of a file that is too long. Lines written meanwhile may be lost."""
    if size_bytes(path) <= log_bytes_max:
        return
    with path.open("rb+") as file:
        file.seek(-log_bytes_kept, os.SEEK_END)
        kept = file.read(log_bytes_kept)
        file.truncate(0)
        file.seek(0)
        file.write(kept.partition(b"\n")[2])


def tail(path: Path, bytes_max: int) -> bytes:
    """The newest part of the file, from the start of a line; empty if there is no file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - bytes_max))
            data = file.read(bytes_max)
    except FileNotFoundError:
        return b""
    return data if end <= bytes_max else data.partition(b"\n")[2]


def newest(data: bytes, bytes_max: int) -> bytes:
    """The newest part of what was read already, from the start of a line."""
    return data if len(data) <= bytes_max else data[-bytes_max:].partition(b"\n")[2]


def last_line(path: Path, start_bytes: int = 0) -> str:
    """The last line with text that was written from `start_bytes` on; empty if there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            since = start_bytes if start_bytes <= end else 0  # it was cut
            file.seek(max(since, end - tail_bytes))
            lines = file.read(tail_bytes).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    texts = (line.strip() for line in reversed(lines))
    return next((text for text in texts if text), "")[:line_length_max]
