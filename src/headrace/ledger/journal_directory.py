"""The directory of a journal: whose it is, and what the ledger calls it."""

import fcntl
import os
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.base.ids import new_id
from headrace.ledger.disk import sync_directory
from headrace.ledger.segments import list_segments


def size_of_segments(directory: Path, newest_bytes: int) -> int:
    """What all segments hold, in bytes; the newest has space behind what was written."""
    *older, _ = list_segments(directory)
    return sum(path.stat().st_size for path in older) + newest_bytes


def lock_directory(directory: Path) -> int:
    """Keep other processes out; the lock goes with the descriptor or the process."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise not_writable(directory, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(
            f"another process writes the journal {directory}; stop it, or use another directory"
        ) from None
    return descriptor


def not_writable(directory: Path, error: OSError) -> ConfigurationError:
    """The error of a directory that a journal cannot be opened in."""
    return ConfigurationError(
        f"the journal {directory} cannot be written: {error.strerror}; free some space or fix its "
        "permissions"
    )


def read_or_make_id(directory: Path, clock: Clock) -> str:
    """The journal's name in the ledger; it stays with the directory.

    One that a power cut left empty is made anew, as no two journals may have the same: what the
    earlier name has in the ledger is posted again, and booked once."""
    path = directory / "id"
    if path.exists() and (known := path.read_text().strip()):
        return known
    made, draft = new_id("jrn", clock), directory / "id.new"
    with draft.open("w") as file:
        draft.chmod(0o600)
        file.write(made)
        file.flush()
        os.fsync(file.fileno())  # before its name is there: a rename does not wait for the content
    draft.rename(path)
    sync_directory(directory)
    return made
