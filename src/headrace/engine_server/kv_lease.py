"""KV that waits to be fetched: in segments of shared memory, each leased once, for a while.

    put ──> held ──take──> with its taker ──release──> gone
             └── its time is over ──────────────────────┘

The bytes of both states together stay within a bound; what does not fit is not kept, and whoever
asks for it computes. A segment is an anonymous file (`memfd`): it has no name that could be left
behind, and its memory is free when the last process that has it open ends, however it ends.
"""

import mmap
import os
import secrets
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import overload

from headrace.base.clock import Clock
from headrace.engine.kv_parcel import KvParcel

try:
    import fcntl

    seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
except (ImportError, AttributeError):  # not on Linux
    seals = 0

transfer_id_bytes = 16


class Segment:
    """Bytes in an anonymous file, which nobody changes any more."""

    def __init__(self, fd: int, byte_count: int) -> None:
        self.fd = fd
        self.byte_count = byte_count

    @classmethod
    def of(cls, blocks: Sequence[bytes]) -> "Segment":
        """Copy blocks into a new one; OSError where there is no memory for it."""
        fd = _anonymous_file()
        try:
            with open(fd, "wb", closefd=False) as file:
                for block in blocks:
                    file.write(block)
            if seals:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, sum(map(len, blocks)))

    def view(self) -> mmap.mmap:
        """The bytes, read only."""
        return mmap.mmap(self.fd, self.byte_count, prot=mmap.PROT_READ)

    def close(self) -> None:
        """Give the memory back, as far as this process has it."""
        os.close(self.fd)


def _anonymous_file() -> int:
    if seals:
        return os.memfd_create("headrace-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def is_sealed(fd: int) -> bool:
    """Whether a file can neither shrink, grow nor change, so that it is safe to map."""
    return bool(seals) and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals


class PackedBlocks(Sequence[bytes]):
    """Blocks of one size that lie end to end in a buffer; each is copied out when it is asked."""

    def __init__(self, buffer: mmap.mmap | bytearray, block_bytes: int) -> None:
        self._view = memoryview(buffer)
        self._block_bytes = block_bytes

    def __len__(self) -> int:
        return len(self._view) // self._block_bytes

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        size = self._block_bytes
        return bytes(self._view[index * size : (index + 1) * size])


@dataclass(frozen=True, slots=True)
class Lease:
    """One parcel that waits, or is with its taker."""

    parcel: KvParcel  # its blocks are in the segment
    block_bytes: int
    segment: Segment
    due_s: float


class LeaseStore:
    """What one engine has to give; any thread may call."""

    def __init__(self, bytes_max: int, lease_s: float, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}  # the oldest first
        self._byte_count = 0
        self.results: Counter[str] = Counter()  # of leases that ended without a taker

    @property
    def byte_count(self) -> int:
        """What waits and what is with takers."""
        return self._byte_count

    def put(self, parcel: KvParcel) -> str | None:
        """The transfer's id, which nobody can guess; None if there is no room."""
        size = sum(map(len, parcel.blocks))
        with self._lock:
            self._expire()
            if self._byte_count + size > self._bytes_max:
                self.results["full"] += 1
                return None
            self._byte_count += size
        try:
            segment = Segment.of(parcel.blocks)
        except OSError:
            with self._lock:
                self._byte_count -= size
                self.results["full"] += 1
            return None
        transfer_id = secrets.token_hex(transfer_id_bytes)
        bare = KvParcel(
            parcel.fingerprint, parcel.names, parcel.token_count, parcel.cached_tokens, ()
        )
        due_s = self._clock.monotonic_s() + self._lease_s
        with self._lock:
            self._leases[transfer_id] = Lease(bare, len(parcel.blocks[0]), segment, due_s)
        return transfer_id

    @contextmanager
    def take(self, transfer_id: str) -> Iterator[Lease | None]:
        """What waits under an id, for this block and for nobody after it; None if nothing does."""
        with self._lock:
            self._expire()
            lease = self._leases.pop(transfer_id, None)
        try:
            yield lease
        finally:
            if lease is not None:
                with self._lock:
                    self._free(lease)

    def expire(self) -> float | None:
        """Free what waited for too long; the seconds until the next is due, None: nothing waits."""
        with self._lock:
            self._expire()
            oldest = next(iter(self._leases.values()), None)
            return None if oldest is None else oldest.due_s - self._clock.monotonic_s()

    def close(self) -> None:
        """Free all that waits."""
        with self._lock:
            for lease in self._leases.values():
                self._free(lease)
            self._leases.clear()

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._leases:
            transfer_id, lease = next(iter(self._leases.items()))
            if lease.due_s > now_s:
                return
            del self._leases[transfer_id]
            self._free(lease)
            self.results["expired"] += 1

    def _free(self, lease: Lease) -> None:
        self._byte_count -= lease.segment.byte_count
        lease.segment.close()
