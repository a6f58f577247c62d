"""Which cached files processes rely on, so that whoever makes room leaves those alone.

A user holds a shared lock on the file, or on the directory of a model of several; the system gives
it back when the process ends, however it ends. A remover must get the lock alone.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

looking = os.O_RDONLY | os.O_NONBLOCK  # at a pipe too, which would wait for its writer


def hold_for_life(path: Path) -> bool:
    """Mark a file as used, now and as long as this process lives; False if it was just removed.

    Waits while another process removes it. A file system without locks holds nothing."""
    try:
        descriptor = os.open(path, looking)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        mark_used(path)
    except OSError:
        return path.exists()
    return os.fstat(descriptor).st_nlink > 0


def hold_while_open(file: IO[bytes]) -> None:
    """Mark an open file as used until it is closed. A file system without locks holds nothing."""
    with suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)


def mark_used(path: Path) -> None:
    """Set the time of the last use; that of a file's content stays. OSError if it is another's.

    A directory's time of access is changed by looking into it, so its other time is taken."""
    if path.is_dir():
        os.utime(path)
    else:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def used_time_s(path: Path) -> float:
    """When it was last used, or written; 0 if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0.0
    return status.st_mtime if path.is_dir() else max(status.st_atime, status.st_mtime)


def is_in_use(paths: Iterable[Path]) -> bool:
    """Whether a process holds one of them."""
    with ExitStack() as stack:
        return not _alone(paths, stack)


def remove_unless_used(paths: Iterable[Path], *, guards: Iterable[Path] = ()) -> bool:
    """Remove files and directories together, or none if one of them, or of `guards`, is held."""
    files = list(paths)
    with ExitStack() as stack:
        if not _alone([*files, *guards], stack):
            return False
        for file in files:
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)
    return True


def _alone(paths: Iterable[Path], stack: ExitStack) -> bool:
    """Lock each for the stack's life; False if somebody has one. What is gone counts as free."""
    for path in paths:
        try:
            descriptor = os.open(path, looking)
        except OSError:
            continue
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
