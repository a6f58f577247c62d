"""Runs batches to their end, over restarts: what is written is done, everything else is asked.

A request's id is made of its batch and its line, and the ledger books an id once for ever, so one
that a crash ran twice is charged once. A batch belongs to the process that holds its lock file.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.base.loops import LoopKeeper
from headrace.gateway.batch_values import (
    Batch,
    BatchErrors,
    KeptBatch,
    RequestCounts,
    check_input,
    ended,
    line_error,
)
from headrace.gateway.batch_work import BatchWork
from headrace.gateway.content_store import ContentStore
from headrace.gateway.files import FileStore
from headrace.gateway.inside import InsideRequests

batches_at_once_max = 4
requests_at_once_max = 64  # of all batches of one gateway
scan_interval_s = 5.0  # for batches that another gateway took and lost
look_interval_s = 0.5  # at whether a running one was cancelled
abandon_timeout_s = 10.0  # for what runs then to be aborted and settled

log = logging.getLogger(__name__)


class BatchRunner:
    """The batches that this gateway runs."""

    def __init__(
        self,
        store: ContentStore,
        files: FileStore,
        inside: InsideRequests,
        clock: Clock,
        loops: LoopKeeper,
    ) -> None:
        """`loops` is told of a batch's faults."""
        self._loops = loops
        self.store = store
        self.files = files
        self._inside = inside
        self._clock = clock
        self._places = asyncio.Semaphore(requests_at_once_max)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._over: set[str] = set()  # batches that are there and ended: read once
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There is a new batch."""
        self._wake.set()

    async def follow(self) -> None:
        """Run what is to be run until cancelled; what runs then goes on at the next start."""
        try:
            while True:
                self._wake.clear()
                await self._start_waiting()
                with suppress(TimeoutError):
                    async with asyncio.timeout(scan_interval_s):
                        await self._wake.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _start_waiting(self) -> None:
        for project_id, batch_id in await asyncio.to_thread(self._unended):
            if len(self._running) >= batches_at_once_max:
                return
            if batch_id not in self._running:
                task = asyncio.create_task(self._run_locked(project_id, batch_id))
                self._running[batch_id] = task
                task.add_done_callback(partial(self._ended, batch_id))

    def _ended(self, batch_id: str, _: asyncio.Task[None]) -> None:
        del self._running[batch_id]
        self.wake()

    def _unended(self) -> list[tuple[str, str]]:
        """The batches that have work left, the oldest first."""
        found: list[tuple[str, str]] = []
        present = list(self.store.all_ids())
        self._over.intersection_update(batch_id for _, batch_id in present)
        for project_id, batch_id in present:
            if batch_id in self._over:
                continue
            with suppress(HeadraceError):
                if self.store.get(project_id, batch_id, KeptBatch).batch.status in ended:
                    self._over.add(batch_id)
                else:
                    found.append((project_id, batch_id))
        return sorted(found, key=lambda each: each[1])

    async def _run_locked(self, project_id: str, batch_id: str) -> None:
        try:
            descriptor = take_lock(self.store.path(project_id, batch_id, "lock"))
            if descriptor is None:
                await asyncio.sleep(scan_interval_s)  # another gateway runs it
                return
            try:
                await self._run(project_id, batch_id)
            finally:
                os.close(descriptor)
        except (HeadraceError, OSError) as error:
            log.warning("batch %s stopped: %s", batch_id, error)
            await asyncio.sleep(scan_interval_s)
        except Exception as error:  # noqa: BLE001 -- noted, with its traceback
            await asyncio.sleep(max(scan_interval_s, self._loops.note("batches", error)))

    async def _run(self, project_id: str, batch_id: str) -> None:
        kept = await self._load(project_id, batch_id)
        if kept.batch.status == "validating":
            kept = await self._validate(project_id, kept)
        if kept.batch.status in ended:
            return
        input_path = self.files.content(project_id, kept.batch.input_file_id)
        work = BatchWork(
            kept,
            input_path,
            (
                self.store.path(project_id, batch_id, "output"),
                self.store.path(project_id, batch_id, "errors"),
            ),
            self._inside,
            self._places,
        )
        await asyncio.to_thread(work.resume)
        if kept.batch.status == "cancelling":
            work.close()
            await self._finish(project_id, batch_id, work, "cancelled")
            return
        asking = asyncio.create_task(work.ask_all())
        try:
            reason = await self._watch(project_id, kept.batch, work, asking)
            if reason != "completed":
                work.abandon()
                await asyncio.wait({asking}, timeout=abandon_timeout_s)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            work.close()
        await self._finish(project_id, batch_id, work, reason)

    async def _validate(self, project_id: str, kept: KeptBatch) -> KeptBatch:
        """Look at the whole input; the batch fails if a line is wrong."""
        batch = kept.batch
        try:
            path = self.files.content(project_id, batch.input_file_id)
            checked = await asyncio.to_thread(check_input, path, batch.endpoint)
            errors, total = checked.errors, checked.total
        except HeadraceError as error:
            errors, total = (line_error(InvalidRequest(error.message), 0),), 0
        now = self._now()

        def change(batch: Batch) -> Batch:
            if errors:
                return replace(batch, status="failed", failed_at=now, errors=BatchErrors(errors))
            begun = replace(batch, in_progress_at=now, request_counts=RequestCounts(total=total))
            return begun if begun.status == "cancelling" else replace(begun, status="in_progress")

        return await self._update(project_id, batch.id, change)

    async def _watch(
        self, project_id: str, batch: Batch, work: BatchWork, asking: asyncio.Task[None]
    ) -> str:
        """Keep the counts fresh until all is asked, or it is cancelled or too late."""
        while True:
            done, _ = await asyncio.wait({asking}, timeout=look_interval_s)
            if done:
                asking.result()
                return "completed"
            if self._now() >= batch.expires_at:
                return "expired"
            kept = await self._load(project_id, batch.id)
            if kept.batch.status == "cancelling":
                return "cancelled"
            counts = work.counts()
            if counts != kept.batch.request_counts:
                await self._update(project_id, batch.id, partial(replace, request_counts=counts))

    async def _finish(self, project_id: str, batch_id: str, work: BatchWork, status: str) -> None:
        """Hand the results over as files; the batch has its last status then."""
        now = self._now()
        output_id, error_id = [
            await asyncio.to_thread(self._hand_over, project_id, path, f"{batch_id}_{name}.jsonl")
            for path, name in zip(work.outputs, ("output", "error"), strict=True)
        ]

        def change(batch: Batch) -> Batch:
            return replace(
                batch,
                status=status,
                request_counts=work.counts(),
                finalizing_at=now,
                output_file_id=output_id,
                error_file_id=error_id,
                **{f"{status}_at": now},
            )

        await self._update(project_id, batch_id, change)

    def _hand_over(self, project_id: str, path: Path, filename: str) -> str | None:
        """Make a file of results one that callers can read; None if there are none."""
        if not path.exists() or not path.stat().st_size:
            return None
        file_id, target = self.files.begin(project_id)
        os.link(path, target)  # a crash before the batch is saved makes another one later
        return self.files.finish(project_id, file_id, filename, "batch_output").id

    async def _load(self, project_id: str, batch_id: str) -> KeptBatch:
        return await asyncio.to_thread(self.store.get, project_id, batch_id, KeptBatch)

    async def _update(
        self, project_id: str, batch_id: str, change: Callable[[Batch], Batch]
    ) -> KeptBatch:
        def changed(kept: KeptBatch) -> KeptBatch:
            return replace(kept, batch=change(kept.batch))

        return await asyncio.to_thread(self.store.update, project_id, batch_id, KeptBatch, changed)

    def _now(self) -> int:
        return int(self._clock.wall_s())


def take_lock(path: Path) -> int | None:
    """The open lock file, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
