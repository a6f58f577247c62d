"""A batch that ends by a fault is told of, and not begun again at once."""

import asyncio
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
