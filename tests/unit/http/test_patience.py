"""Limits of time that pass while the loop turns, on a loop whose clock the test moves."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.http.patience import parts, patience

limit_s = 3600.0


@pytest.fixture
async def pass_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the loop's clock forward at once, as a process that was not run would see it."""
    loop = asyncio.get_running_loop()
    clock, passed_s = loop.time, 0.0

    def move(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    monkeypatch.setattr(loop, "time", lambda: clock() + passed_s)
    return move


async def turn() -> None:
    """Let the loop run what is due, and what follows from it."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_stall_of_any_length_takes_one_part(pass_s: Callable[[float], None]) -> None:
    async with patience(limit_s):
        for _ in range(parts - 1):
            pass_s(100 * limit_s)
            await turn()


async def test_it_ends_after_its_parts(pass_s: Callable[[float], None]) -> None:
    passed = 0

    async def wait() -> None:
        nonlocal passed
        async with patience(limit_s):
            while True:
                passed += 1
                pass_s(limit_s / parts)
                await turn()

    with pytest.raises(TimeoutError):
        await wait()
    assert passed == parts


async def test_what_ended_in_time_is_not_disturbed_later(pass_s: Callable[[float], None]) -> None:
    async with patience(limit_s):
        await turn()
    for _ in range(2 * parts):
        pass_s(limit_s)
        await turn()


async def test_a_cancelled_caller_is_cancelled_and_not_late() -> None:
    async def wait() -> None:
        async with patience(limit_s):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
