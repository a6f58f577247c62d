import asyncio
import errno
import os
from pathlib import Path

import pytest

from headrace.base.errors import SetupError
from headrace.cli.supervisor import child as module
from headrace.cli.supervisor.child import Child, ChildSpec, backoff_s
from headrace.launchers import log_file
from headrace.sim.child_process import until
from headrace.sim.clock import ManualClock


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff_first_s", 0.0)


def make(tmp_path: Path, script: str, told: list[str] | None = None) -> Child:
    spec = ChildSpec(
        name="gateway",
        argv=("/bin/sh", "-c", script),
        environment={"PATH": os.environ["PATH"], "COUNT": str(tmp_path / "count")},
        descriptors=(),
        log_path=tmp_path / "logs" / "gateway.log",
    )
    return Child(spec, ManualClock(), ([] if told is None else told).append)


async def until_started(child: Child, times: int) -> None:
    await until(lambda: child.pid is not None and child.restart_count >= times - 1)


async def test_a_child_that_never_comes_up_is_an_error_in_its_own_words(tmp_path: Path) -> None:
    child = make(tmp_path, 'echo x >> "$COUNT"; echo "headrace: the journal is full"; exit 4')

    with pytest.raises(SetupError) as ended:
        await child.keep_running()
    assert ended.value.message.startswith(
        "The gateway ended with status 4: the journal is full (its log is "
    )
    assert len((tmp_path / "count").read_text().split()) == module.first_starts_max


async def test_a_signal_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="was ended by signal 9 "):
        await make(tmp_path, "kill -9 $$").keep_running()


async def test_a_program_that_is_missing_is_an_error_at_once(tmp_path: Path) -> None:
    child = make(tmp_path, "")
    missing = ChildSpec("gateway", ("/no/such",), {}, (), tmp_path / "gateway.log")

    with pytest.raises(SetupError, match="cannot be started"):
        await Child(missing, ManualClock(), print).keep_running()
    await child.stop(1.0)  # was never started


async def test_a_child_of_a_platform_that_was_ready_is_tried_for_ever(tmp_path: Path) -> None:
    told: list[str] = []
    child = make(tmp_path, "echo words; exit 1", told)
    child.was_ready = True
    keeping = asyncio.create_task(child.keep_running())
    await until_started(child, 3 * module.first_starts_max)

    assert not keeping.done()
    assert told[0].startswith("The gateway ended with status 1: words (its log is ")
    keeping.cancel()
    await asyncio.wait([keeping])
    await child.stop(1.0)


async def test_a_killed_child_is_started_again_and_stopped_for_good(tmp_path: Path) -> None:
    child = make(tmp_path, "exec sleep 60")
    keeping = asyncio.create_task(child.keep_running())
    await until_started(child, 1)
    first = child.pid
    assert first is not None
    os.kill(first, 9)
    await until_started(child, 2)

    assert child.pid != first
    keeping.cancel()
    await asyncio.wait([keeping])
    assert child.pid is not None  # an end of the keeping is no end of the process
    await child.stop(10.0)
    assert child.pid is None


async def test_a_child_that_refuses_to_end_is_killed(tmp_path: Path) -> None:
    child = make(tmp_path, "trap '' TERM; echo on; while :; do sleep 0.1; done")
    keeping = asyncio.create_task(child.keep_running())
    await until(lambda: log_file.size_bytes(child.spec.log_path) > 0)
    keeping.cancel()
    await asyncio.wait([keeping])
    await child.stop(0.05)

    assert child.pid is None


def test_pauses_double_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff_first_s", 0.25)

    assert [backoff_s(ends) for ends in (1, 2, 3, 6, 7, 1_000)] == [0.25, 0.5, 1.0, 8.0, 10.0, 10.0]


def test_a_log_that_cannot_be_cut_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[str] = []
    child = make(tmp_path, "true", told)
    monkeypatch.setattr(log_file, "cut_if_long", full)
    child.tend_log()
    child.tend_log()
    assert len(told) == 1
    assert "cannot be cut (No space left on device)" in told[0]
