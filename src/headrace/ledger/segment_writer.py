"""Writes records to segments, and goes on when the disk does not.

    accept(data)     to the operating system, at once: it survives the end of this process
    sync(written)    what was accepted, to stable storage: it survives the machine's
    write(data)      both, by whatever way is left

    WRITING ──disk error──> EMERGENCY ──no room there either──> STALLED
       ^                        │                                  │
       └── restore(): space for a new emergency file ──────────────┘

The emergency file is written while there is space and renamed to a segment when there is none:
its blocks exist, so what must be written still can be. A segment that failed is never written
again, because after a failed sync nobody knows what is on the disk; it is cut to what is known.

One thread calls `sync`, `write` and `restore`. Another may `accept` while that one syncs, and no
longer once `accept` or `sync` failed or said no, until `write` has returned.
"""

import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from headrace.ledger.disk import Disk
from headrace.ledger.segments import emergency_name, segment_path


class WriterState(StrEnum):
    """How well writing goes; see the module's diagram."""

    WRITING = "writing"
    EMERGENCY = "emergency"
    STALLED = "stalled"


class SegmentWriter:
    """The newest segment and the emergency file behind it."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        *,
        segment_bytes: int,
        emergency_bytes: int,
        next_sequence: int,
    ) -> None:
        """Start a new segment; OSError if there is no space for it and the emergency file."""
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._emergency_bytes = emergency_bytes
        self._emergency = directory / emergency_name
        self._size_bytes = 0  # of the newest segment, durable
        self._accepted_bytes = 0  # of the newest segment; what is not durable comes behind
        self._is_spoilt = False  # something failed on the newest segment
        self._descriptor: int | None = None
        self.state = WriterState.WRITING
        disk.preallocate(self._emergency, emergency_bytes)
        self._begin(segment_path(directory, next_sequence))

    @property
    def size_bytes(self) -> int:
        """What the newest segment holds, durably."""
        return self._size_bytes

    @property
    def accepted_bytes(self) -> int:
        """How far the newest segment is written."""
        return self._accepted_bytes

    def accept(self, data: bytes) -> bool:
        """Hand data to the operating system, if the newest segment is well and has room for it.

        OSError if it did not take all of it: the segment is no good any more."""
        if self._descriptor is None or self.state is not WriterState.WRITING:
            return False
        if self._is_spoilt or self._is_full(len(data)):
            return False
        try:
            self._disk.append(self._descriptor, data)
        except OSError:
            self._is_spoilt = True
            raise
        self._accepted_bytes += len(data)
        return True

    def sync(self, accepted_bytes: int) -> None:
        """Return when the newest segment is on stable storage up to here.

        OSError if nobody knows whether it is; `write` it anew then."""
        assert self._descriptor is not None, "what was accepted has a segment"
        try:
            self._disk.sync(self._descriptor)
        except OSError:
            self._is_spoilt = True
            raise
        self._size_bytes = accepted_bytes

    def write(self, first_sequence: int, data: bytes) -> None:
        """Write a batch that starts at a sequence; it is on stable storage on return.

        OSError if no way was left to do so: write the same batch again later."""
        if self._is_spoilt:
            self.close()  # it is cut to what is known to be on the disk, and never touched again
        attempts = (self._write_on, self._write_emergency, self._write_fresh)
        for attempt in attempts:
            try:
                attempt(first_sequence, data)
            except OSError as error:
                self.close()
                failure = error
            else:
                return
        self.state = WriterState.STALLED
        raise failure

    def restore(self) -> bool:
        """Try to set emergency space aside again; True if writing is back to normal."""
        if self.state is not WriterState.WRITING:
            try:
                self._disk.preallocate(self._emergency, self._emergency_bytes)
            except OSError:
                return False
            self.close()  # the next batch starts a segment of its own
            self.state = WriterState.WRITING
        return True

    def close(self) -> None:
        """Close the newest segment, cut to what is durable; the space behind is given back."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.ftruncate(descriptor, self._size_bytes)
            with suppress(OSError):
                os.close(descriptor)

    def _write_on(self, first_sequence: int, data: bytes) -> None:
        """Append to the newest segment, or start the next one when it is full."""
        if self._descriptor is None:
            if self.state is not WriterState.WRITING:
                raise OSError("no segment is open")
            self._begin(segment_path(self._directory, first_sequence))
        elif self._is_full(len(data)):
            self.close()
            self._begin(segment_path(self._directory, first_sequence))
        self._append(data)

    def _write_emergency(self, first_sequence: int, data: bytes) -> None:
        self.state = WriterState.EMERGENCY
        path = segment_path(self._directory, first_sequence)
        self._descriptor = self._disk.reuse(self._emergency, path)
        self._is_spoilt = False
        self._size_bytes = self._accepted_bytes = 0
        self._append(data)

    def _write_fresh(self, first_sequence: int, data: bytes) -> None:
        self._begin(segment_path(self._directory, first_sequence))
        self._append(data)

    def _is_full(self, more_bytes: int) -> bool:
        return (
            self.state is WriterState.WRITING
            and self._accepted_bytes > 0
            and self._accepted_bytes + more_bytes > self._segment_bytes
        )

    def _begin(self, path: Path) -> None:
        self._descriptor = self._disk.create(path, self._segment_bytes)
        self._is_spoilt = False
        self._size_bytes = self._accepted_bytes = 0

    def _append(self, data: bytes) -> None:
        assert self._descriptor is not None
        self._disk.append(self._descriptor, data)
        self._disk.sync(self._descriptor)
        self._size_bytes += len(data)
        self._accepted_bytes = self._size_bytes
