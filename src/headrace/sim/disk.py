"""A disk of a given size under the journal, so that tests can fill it up and make room again."""

import errno
import os
import threading
from pathlib import Path

from headrace.ledger.disk import PosixDisk


class BoundedDisk(PosixDisk):
    """Writes through to a real directory until its space is used up; then ENOSPC.

    A write that does not fit is torn: its beginning is there, as on a real disk. Preallocated
    files keep what they have when nothing else is left."""

    def __init__(self, free_bytes: int) -> None:
        self._space = threading.RLock()  # a test makes room while the journal's thread writes
        self._free_bytes = free_bytes
        self.syncs = 0
        self._preallocated_bytes: dict[int, int] = {}  # left to write, by descriptor
        self._sizes_bytes: dict[Path, int] = {}  # of preallocated files

    @property
    def free_bytes(self) -> int:
        """What nobody has."""
        return self._free_bytes

    @free_bytes.setter
    def free_bytes(self, count: int) -> None:
        with self._space:
            self._free_bytes = count

    def append(self, descriptor: int, data: bytes) -> None:
        """Write what fits."""
        with self._space:
            own_bytes = min(len(data), self._preallocated_bytes.get(descriptor, 0))
            shared_bytes = min(len(data) - own_bytes, self._free_bytes)
            if own_bytes:
                self._preallocated_bytes[descriptor] -= own_bytes
            self._free_bytes -= shared_bytes
        super().append(descriptor, data[: own_bytes + shared_bytes])
        if own_bytes + shared_bytes < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, descriptor: int) -> None:
        """Count, so that a test can say how many records shared one."""
        self.syncs += 1
        super().sync(descriptor)

    def create(self, path: Path, size_bytes: int = 0) -> int:
        """Make a file; it takes no space by itself, and gets none set aside."""
        descriptor = super().create(path)
        self._preallocated_bytes.pop(descriptor, None)
        return descriptor

    def preallocate(self, path: Path, size_bytes: int) -> None:
        """Set space aside, or fail and give back what was taken."""
        with self._space:
            free_bytes = self._free_bytes
            try:
                super().preallocate(path, size_bytes)
            except OSError:
                self._free_bytes = free_bytes
                raise
            self._sizes_bytes[path] = size_bytes

    def reuse(self, old: Path, new: Path) -> int:
        """Hand over a preallocated file."""
        descriptor = super().reuse(old, new)
        self._preallocated_bytes[descriptor] = self._sizes_bytes.pop(old)
        return descriptor
