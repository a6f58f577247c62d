"""The gateway's memory of money: an append-only file that a request's life is written to first.

    append              numbers a record and hands it to the operating system: microseconds
    await accepted()    it survives the end of this process, by kill -9 too (nearly always at once)
    await durable(n)    it survives the machine's: a thread syncs, once for all that came meanwhile

So the event loop never waits for a disk, and a busy gateway pays one sync for many requests. What
nobody waits for is synced with the next that somebody does, or after `group_s`. The thread also
writes what `append` could not: at the end of a segment, and while the disk fails.

While the disk is full or broken no reservation is accepted, checkpoints are dropped, and
settlements go to space that was set aside, or wait in memory until there is some. Their number is
bounded, because each belongs to a reservation that was accepted before. See `segment_writer`.
"""

import asyncio
import os
import threading
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import HeadraceError, Unavailable
from headrace.ledger.disk import Disk, PosixDisk
from headrace.ledger.frames import encode_frame
from headrace.ledger.journal_directory import (
    lock_directory,
    not_writable,
    read_or_make_id,
    size_of_segments,
)
from headrace.ledger.replay import Running, apply, replay
from headrace.ledger.reservation import Checkpoint, Reserve
from headrace.ledger.segment_writer import SegmentWriter, WriterState
from headrace.ledger.segments import JournalRecord, encoder, first_sequence_of, list_segments


class JournalLimits(NamedTuple):
    """The bounds of a journal."""

    segment_bytes: int = 16 * 1024 * 1024  # deleted as a whole, so small against the total
    total_bytes: int = 1024 * 1024 * 1024  # two million requests that no ledger has taken yet
    emergency_bytes: int = 8 * 1024 * 1024  # a settlement of every request that may run at once
    pending_records: int = 8192  # that wait for the writer; more means that the disk is too slow
    group_s: float = 0.005  # until what nobody waits for is synced
    retry_s: float = 1.0  # between attempts to get back to a healthy disk
    carry_timeout_s: float = 10.0  # for the running requests of a segment to be written anew


class JournalStatus(NamedTuple):
    """How a journal is doing, for metrics and for people."""

    state: WriterState
    sequence: int  # of the last record that was appended
    durable_sequence: int
    pending_records: int
    running_requests: int
    total_bytes: int


class AsyncWaiter(NamedTuple):
    """Somebody on an event loop who waits for a record to be durable."""

    sequence: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Journal:
    """An open journal; `append`, then wait for what must not be lost. Safe from any thread."""

    def __init__(
        self,
        directory: Path,
        limits: JournalLimits | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Replay what is there and start the writer.

        ConfigurationError if another process has it open, or if the disk is full already."""
        self._limits = limits or JournalLimits()
        self._clock = clock or SystemClock()
        self.directory = directory
        self._lock_descriptor = lock_directory(directory)
        try:
            self.journal_id = read_or_make_id(directory, self._clock)
            found = replay(directory)
            self._writer = SegmentWriter(
                directory,
                disk or PosixDisk(),
                segment_bytes=self._limits.segment_bytes,
                emergency_bytes=self._limits.emergency_bytes,
                next_sequence=found.last_sequence + 1,
            )
        except OSError as error:
            os.close(self._lock_descriptor)
            raise not_writable(directory, error) from error
        self.problems = found.problems  # damage found by the replay, for people
        self._running = found.running
        # Numbered, in the operating system, on stable storage; and whose sync is waited for.
        self._sequence = self._accepted_sequence = self._durable_sequence = found.last_sequence
        self._wanted_sequence = found.last_sequence
        self._total_bytes = size_of_segments(directory, self._writer.size_bytes)
        self._restore_at_s = 0.0
        self._pending: list[bytes] = []  # framed, from `_durable_sequence + 1` on
        self._waiters: list[AsyncWaiter] = []
        self._closing = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._thread = threading.Thread(
            target=self._write_all, name="headrace-journal", daemon=True
        )
        self._thread.start()

    def append(self, record: JournalRecord) -> int:
        """Write a record and return its sequence; never waits for the disk.

        Raises Unavailable for a `Reserve` while the disk is full, the ledger is too far behind,
        or too much waits to be written. Others are always taken; a `Checkpoint` that finds no
        room is dropped."""
        payload = encoder.encode(record)
        with self._lock:
            if isinstance(record, Reserve):
                self._refuse_if_unhealthy()
            elif isinstance(record, Checkpoint) and self._writer.state is not WriterState.WRITING:
                apply(self._running, record, self._sequence)
                return self._sequence
            return self._append(record, payload)

    def wait_durable(self, sequence: int, timeout_s: float) -> None:
        """Return when a record is on stable storage; Unavailable if it is not by then.

        The record is not lost by that: the writer keeps trying."""
        with self._lock:
            self._want(sequence)
            self._progress.wait_for(
                lambda: self._durable_sequence >= sequence or self.is_stalled, timeout_s
            )
            if self._durable_sequence < sequence:
                raise not_durable()

    @property
    def is_accepted(self) -> bool:
        """Whether every record so far survives this process, durable or not."""
        return self._accepted_sequence == self._sequence

    async def accepted(self) -> None:
        """Return when every record so far does; errors are those of `durable`."""
        if not self.is_accepted:
            await self.durable(self._sequence)

    async def durable(self, sequence: int) -> None:
        """As `wait_durable` for an event loop, which goes on meanwhile; no timeout of its own."""
        with self._lock:
            if self._durable_sequence >= sequence:
                return
            if self.is_stalled:
                raise not_durable()
            self._want(sequence)
            loop = asyncio.get_running_loop()
            waiter = AsyncWaiter(sequence, loop, loop.create_future())
            self._waiters.append(waiter)
        await waiter.future

    @property
    def durable_sequence(self) -> int:
        """Every record up to here is on stable storage."""
        return self._durable_sequence

    @property
    def is_stalled(self) -> bool:
        """Whether records wait in memory, because the disk takes none at all."""
        return self._writer.state is WriterState.STALLED

    @property
    def is_healthy(self) -> bool:
        """Whether reservations are accepted."""
        with self._lock:
            return self._unhealthy_reason() is None

    def status(self) -> JournalStatus:
        """Figures of one moment."""
        with self._lock:
            return JournalStatus(
                self._writer.state,
                self._sequence,
                self._durable_sequence,
                len(self._pending),
                len(self._running),
                self._total_bytes,
            )

    def running(self) -> list[Running]:
        """The requests without a settlement; right after opening those that a crash left."""
        with self._lock:
            return list(self._running.values())

    def trim(self, shipped_sequence: int) -> None:
        """Delete segments that are shipped; requests that still run are written anew first.

        Call it from the shipper's thread. Unavailable if the disk does not take them."""
        segments = list_segments(self.directory)
        ends = [first_sequence_of(path) - 1 for path in segments[1:]]  # the newest has none
        count = bisect_right(ends, shipped_sequence)
        if not count:
            return
        with self._lock:
            carried = self._carry_forward(ends[count - 1])
        self.wait_durable(carried, timeout_s=self._limits.carry_timeout_s)
        for path in segments[:count]:
            path.unlink()
        with self._lock:
            self._total_bytes = size_of_segments(self.directory, self._writer.size_bytes)

    def renew_id(self) -> None:
        """Take a new name in the ledger, where the old one stands for more than is here.

        That happens when an old copy of the directory is put back; see `Meter.recover`."""
        (self.directory / "id").unlink()
        self.journal_id = read_or_make_id(self.directory, self._clock)

    def close(self) -> None:
        """Write what is queued and stop; Unavailable if the disk did not take it."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._work.notify()
        self._thread.join()
        self._writer.close()
        os.close(self._lock_descriptor)
        if self._durable_sequence < self._sequence:
            raise not_durable()

    def _append(self, record: JournalRecord, payload: bytes) -> int:
        """Number and write one record, or leave it to the thread; the caller holds the lock."""
        self._sequence += 1
        frame = encode_frame(self._sequence, payload)
        self._pending.append(frame)
        apply(self._running, record, self._sequence)
        if not self._accept(frame) or len(self._pending) == 1:
            self._work.notify()
        return self._sequence

    def _accept(self, frame: bytes) -> bool:
        """Hand the newest record to the operating system, if it has all before it."""
        if self._accepted_sequence != self._sequence - 1:
            return False
        try:
            if not self._writer.accept(frame):
                return False
        except OSError:
            self._accepted_sequence = self._durable_sequence  # the thread writes them anew
            return False
        self._accepted_sequence = self._sequence
        return True

    def _want(self, sequence: int) -> None:
        """Somebody waits for a record; the caller holds the lock."""
        if sequence > self._wanted_sequence:
            self._wanted_sequence = sequence
            self._work.notify()

    def _carry_forward(self, end_sequence: int) -> int:
        """Write the running requests of old segments again; the last sequence that did."""
        carried = 0
        for running in list(self._running.values()):
            if running.sequence <= end_sequence:
                reserve = Reserve(running.reservation)
                checkpoint = Checkpoint(running.reservation.request_id, running.usage)
                self._append(reserve, encoder.encode(reserve))
                carried = self._append(checkpoint, encoder.encode(checkpoint))
        return carried

    def _refuse_if_unhealthy(self) -> None:
        reason = self._unhealthy_reason()
        if reason is not None:
            raise Unavailable(
                f"no request can be admitted now: {reason}", retry_after_s=self._limits.retry_s
            )

    def _unhealthy_reason(self) -> str | None:
        """Why no reservation is accepted; the caller holds the lock."""
        if self._writer.state is not WriterState.WRITING:
            return "the disk that holds the journal is full or fails"
        if self._total_bytes >= self._limits.total_bytes:
            return (
                f"the journal holds {self._total_bytes} bytes that the ledger "
                "has not taken; check the database"
            )
        if len(self._pending) >= self._limits.pending_records:
            return f"the disk that holds the journal {self.directory} is too slow"
        return None

    def _write_all(self) -> None:
        """The writer thread: batch after batch, until closed."""
        while self._wait_for_work():
            if self._clock.monotonic_s() >= self._restore_at_s:
                self._restore_at_s = self._clock.monotonic_s() + self._limits.retry_s
                self._writer.restore()
            self._write_batch()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to write or to repair; False: it is time to stop."""
        with self._lock:
            if self.is_stalled:
                if self._closing:
                    return False
                self._work.wait(self._limits.retry_s)
                return True
            healthy = self._writer.state is WriterState.WRITING
            self._work.wait_for(
                lambda: bool(self._pending) or self._closing,
                None if healthy else self._limits.retry_s,
            )
            self._work.wait_for(lambda: not self._may_wait(), self._limits.group_s)
            return bool(self._pending) or not self._closing

    def _may_wait(self) -> bool:
        """Whether nobody misses a sync now, so that it may be for more records."""
        return (
            not self._closing
            and self._accepted_sequence == self._sequence > self._durable_sequence
            and self._wanted_sequence <= self._durable_sequence
        )

    def _write_batch(self) -> None:
        """Make durable what is accepted, else write what is not; tell those who wait."""
        with self._lock:
            accepted_count = self._accepted_sequence - self._durable_sequence
            accepted_bytes = self._writer.accepted_bytes
            batch = self._pending[:accepted_count] if accepted_count else list(self._pending)
            first_sequence = self._durable_sequence + 1
        if not batch:
            return
        try:
            if accepted_count:
                self._writer.sync(accepted_bytes)
            else:
                self._writer.write(first_sequence, b"".join(batch))
        except OSError:
            with self._lock:
                self._accepted_sequence = self._durable_sequence
                if not accepted_count:  # a failed sync is followed by a write
                    self._wake(not_durable())
            return
        with self._lock:
            del self._pending[: len(batch)]
            self._durable_sequence += len(batch)
            self._accepted_sequence = max(self._accepted_sequence, self._durable_sequence)
            self._total_bytes += sum(map(len, batch))
            self._wake(None)

    def _wake(self, error: HeadraceError | None) -> None:
        """Answer those whose records are durable now, or everybody with an error."""
        self._progress.notify_all()
        done: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        waiting: list[AsyncWaiter] = []
        for waiter in self._waiters:
            if error is None and waiter.sequence > self._durable_sequence:
                waiting.append(waiter)
            else:
                done.setdefault(waiter.loop, []).append(waiter.future)
        self._waiters = waiting
        for loop, futures in done.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody waits on it
                loop.call_soon_threadsafe(answer, futures, error)


def answer(futures: list[asyncio.Future[None]], error: HeadraceError | None) -> None:
    """End waits, on the loop that they belong to."""
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def not_durable() -> Unavailable:
    """The error of a record that is not on stable storage yet."""
    return Unavailable(
        "the journal's disk is full or fails; the record is kept in memory and written when there "
        "is space"
    )
