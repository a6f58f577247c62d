"""A batch that ends by a fault is told of, and not begun again at once."""

import asyncio
import errno
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.loops import LoopKeeper
from headrace.gateway.batch_runner import BatchRunner
from headrace.gateway.content_store import ContentStore
from headrace.sim.clock import ManualClock

batch_id = f"batch_{'0' * 26}"


async def test_a_batch_that_fails_waits_before_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store, loops = ContentStore(tmp_path, "batches"), LoopKeeper(clock)
    store.path("prj", batch_id, "lock").parent.mkdir(parents=True)
    begun, has_begun = 0, asyncio.Event()

    async def run(*_: object) -> None:
        nonlocal begun
        begun += 1
        has_begun.set()
        raise ExceptionGroup("lines", [OSError("no space left")])

    monkeypatch.setattr(BatchRunner, "_run", run)
    monkeypatch.setattr(BatchRunner, "_unended", lambda _: [("prj", batch_id)])
    nothing = cast(Any, None)
    runner = BatchRunner(store, nothing, nothing, clock, loops)
    following = asyncio.create_task(runner.follow())
    await has_begun.wait()
    for _ in range(50):
        runner.wake()
        await asyncio.sleep(0)
    assert (begun, loops.totals()) == (1, {"batches": 1})
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_batch_that_cannot_be_locked_waits_before_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, has_failed = ManualClock(), asyncio.Event()

    def fail(path: Path) -> int | None:
        has_failed.set()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("headrace.gateway.batch_runner.take_lock", fail)
    monkeypatch.setattr(BatchRunner, "_unended", lambda _: [("prj", batch_id)])
    nothing = cast(Any, None)
    runner = BatchRunner(
        ContentStore(tmp_path, "batches"), nothing, nothing, clock, LoopKeeper(clock)
    )
    following = asyncio.create_task(runner.follow())
    await has_failed.wait()
    for _ in range(50):
        await asyncio.sleep(0)
        assert batch_id in runner._running, "it waits; else it would be tried again at once"
    assert "No space left on device" in caplog.text
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
