"""No end of an engine is passed over, however soon the next one is ready."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from headrace.base.errors import SetupError
from headrace.cli.engine_news import follow
from headrace.engine_server.engine_status import EngineState, EngineStatus

loading = EngineStatus(EngineState.LOADING, 0.5, "half of the weights")
ready = EngineStatus(EngineState.READY, 1.0, "ready")
restarting = EngineStatus(EngineState.RESTARTING, 0.0, "it ended; starting it again")
hung = EngineStatus(EngineState.HUNG, 0.0, "no step for 30 s")
failed = EngineStatus(EngineState.FAILED, 0.0, "it ended three times")


@dataclass
class ScriptedEngine:
    """Each change is a status and how often the engine was started again by then."""

    changes: Iterator[tuple[EngineStatus, int]]
    status: EngineStatus = loading
    restart_count: int = 0

    @property
    def last_end(self) -> str:
        return f"end {self.restart_count}"

    async def status_change(self) -> EngineStatus:
        self.status, self.restart_count = next(self.changes)
        return self.status


async def told(*changes: tuple[EngineStatus, int]) -> list[str]:
    """What is said of these, until the engine fails."""
    said: list[str] = []
    last = changes[-1][1]
    engine = ScriptedEngine(iter([*changes, (failed, last)]))
    with pytest.raises(SetupError, match="three times"):
        await follow(engine, lambda: said.append("ready"), said.append)
    return said


async def test_an_engine_that_was_ready_and_dead_within_one_look_is_told_of() -> None:
    assert await told((restarting, 1), (ready, 1)) == ["end 1", "ready"]
    assert await told((ready, 1)) == ["end 1", "ready"]
    assert await told((ready, 0), (ready, 1)) == ["ready", "end 1"]


async def test_each_end_is_one_line() -> None:
    changes = (
        (ready, 0),
        (restarting, 1),
        (ready, 1),
        (restarting, 2),
        (restarting, 2),
        (ready, 2),
    )
    assert await told(*changes) == ["ready", "end 1", "end 2"]


async def test_an_end_before_the_first_readiness_is_told_of() -> None:
    assert await told((loading, 1), (loading, 1), (ready, 1)) == ["end 1", "ready"]


async def test_hanging_is_told_once_and_progress_is_not() -> None:
    assert await told((loading, 0), (ready, 0), (hung, 0), (hung, 0)) == [
        "ready",
        "no step for 30 s",
    ]
