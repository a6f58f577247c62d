"""A loop that raises is told of, and goes on."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import pytest

from headrace.base.loops import LoopKeeper, keeps_failing_min, pause_s_max, quiet_s
from headrace.sim.clock import ManualClock

canary = "canary9f2c71e0a4b8d635"


class Pauses:
    """Time that passes by pauses alone."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.taken: list[float] = []

    async def __call__(self, stop: asyncio.Event, seconds: float) -> None:
        self.taken.append(seconds)
        self.clock.advance(seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pauses(clock: ManualClock) -> Pauses:
    return Pauses(clock)


@pytest.fixture
def loops(clock: ManualClock, pauses: Pauses) -> LoopKeeper:
    return LoopKeeper(clock, pauses)


def failing(times: int, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
    """A loop that raises so often, and returns the next time."""
    left = times

    async def run() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error or KeyError("what nobody foresaw")

    return run


async def test_a_loop_that_raises_is_started_again_and_counted(
    loops: LoopKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    await loops.start("alerts", failing(2))
    assert loops.totals() == {"alerts": 2}
    assert "the loop alerts failed, 2 in a row" in caplog.text
    assert "test_loops.py" in caplog.text, "where it was raised"
    assert "what nobody foresaw" in caplog.text


async def test_pauses_double_up_to_a_bound(loops: LoopKeeper, pauses: Pauses) -> None:
    await loops.start("alerts", failing(30))
    assert pauses.taken[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses.taken[-1] == max(pauses.taken) == pause_s_max


async def test_after_quiet_a_fault_is_a_first_one(
    loops: LoopKeeper, pauses: Pauses, clock: ManualClock
) -> None:
    await loops.start("alerts", failing(5))
    clock.advance(quiet_s)
    await loops.start("alerts", failing(1))
    assert pauses.taken[-2:] == [8.0, 0.5]


async def test_one_that_never_failed_is_counted_too(loops: LoopKeeper) -> None:
    await loops.start("webhooks", failing(0))
    assert loops.totals() == {"webhooks": 0}
    assert loops.complaint() == ""


async def test_who_keeps_failing_is_told_until_it_is_quiet(
    loops: LoopKeeper, clock: ManualClock
) -> None:
    await loops.start("alerts", failing(keeps_failing_min - 1))
    assert loops.complaint() == ""
    await loops.start("webhooks", failing(keeps_failing_min))
    assert (
        loops.complaint()
        == "keeps failing: webhooks (3 times in a row, KeyError); the log says why"
    )
    clock.advance(quiet_s)
    assert loops.complaint() == ""


async def test_what_is_told_to_stop_is_not_started_again(clock: ManualClock) -> None:
    stop, started = asyncio.Event(), 0

    async def run() -> None:
        nonlocal started
        started += 1
        stop.set()
        raise RuntimeError

    await LoopKeeper(clock).start("alerts", run, stop)
    assert started == 1


async def test_a_cancelled_one_ends(loops: LoopKeeper) -> None:
    running = asyncio.Event()

    async def run() -> None:
        running.set()
        await asyncio.Event().wait()

    task = loops.start("snapshot", run)
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loops.totals() == {"snapshot": 0}


def test_a_threads_loop_is_kept_as_well(clock: ManualClock) -> None:
    stop, loops = threading.Event(), LoopKeeper(clock)

    def run() -> None:
        stop.set()
        raise KeyError

    loops.keep_here("journal_shipper", run, stop)
    assert loops.totals() == {"journal_shipper": 1}


def test_what_looks_like_a_secret_is_not_logged(
    loops: LoopKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    loops.note("alerts", ValueError(f"postgresql://user:{canary}@db/headrace"))
    assert "postgresql://user:(hidden)@db" in caplog.text
    assert canary not in caplog.text
