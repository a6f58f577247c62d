"""What the journal asks of a file system; the seam at which tests fill it up or tear it."""

import os
from pathlib import Path
from typing import Protocol

sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


class Disk(Protocol):
    """Operations on files of one directory; every failure is an OSError."""

    def create(self, path: Path, size_bytes: int = 0) -> int:
        """Make a file that only its owner may read, and return its descriptor.

        `size_bytes` are set aside if there is room: a sync of what is written there need not wait
        for the file system's own journal, which others keep busy. Zeros follow what is written."""
        ...

    def append(self, descriptor: int, data: bytes) -> None:
        """Write all of `data` at the file's position."""
        ...

    def sync(self, descriptor: int) -> None:
        """Return when everything written is on stable storage."""
        ...

    def preallocate(self, path: Path, size_bytes: int) -> None:
        """Make a file of zeros whose blocks belong to it, so that writing needs no more space."""
        ...

    def reuse(self, old: Path, new: Path) -> int:
        """Rename a preallocated file and return its descriptor, positioned at its start."""
        ...


class PosixDisk:
    """The machine's file system."""

    def create(self, path: Path, size_bytes: int = 0) -> int:
        """Make a file, also where an abandoned one lies."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        if size_bytes:
            set_aside(descriptor, size_bytes)
        sync_directory(path.parent)
        return descriptor

    def append(self, descriptor: int, data: bytes) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        """Sync the data and what is needed to find it."""
        sync_data(descriptor)

    def preallocate(self, path: Path, size_bytes: int) -> None:
        """Write zeros; nothing is left behind if there is too little space."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self.append(descriptor, bytes(size_bytes))
            os.fsync(descriptor)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        sync_directory(path.parent)

    def reuse(self, old: Path, new: Path) -> int:
        """Rename within one directory."""
        descriptor = os.open(old, os.O_WRONLY)
        try:
            old.rename(new)
            sync_directory(new.parent)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def set_aside(descriptor: int, size_bytes: int) -> None:
    """Reserve space at a file's start where the file system can, and has it."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        os.fsync(descriptor)
    except (OSError, AttributeError):  # macOS has no such call
        os.ftruncate(descriptor, 0)


def sync_directory(path: Path) -> None:
    """Make the creation or renaming of files in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
