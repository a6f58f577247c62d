"""What a terminal is told of the engine: that it is ready, that it ended, that it hangs or sleeps.

Whoever looks at its status sees the newest alone, and an engine may be ready and dead within one
look. So ends are counted, and none is passed over.
"""

from collections.abc import Callable
from typing import NoReturn, Protocol

from headrace.base.errors import SetupError
from headrace.engine_server.engine_status import EngineState, EngineStatus

told_states = (EngineState.HUNG, EngineState.SLEEPING, EngineState.RESTARTING)


class WatchedEngine(Protocol):
    """The part of `EngineClient` that is needed here."""

    @property
    def status(self) -> EngineStatus:
        """Where it is now."""
        ...

    @property
    def restart_count(self) -> int:
        """How often it was started again."""
        ...

    @property
    def last_end(self) -> str:
        """How it ended the last time, in words."""
        ...

    async def status_change(self) -> EngineStatus:
        """Wait for the next change of the status."""
        ...


async def follow(
    engine: WatchedEngine, announce: Callable[[], None], tell: Callable[[str], None]
) -> NoReturn:
    """Announce the first time that it is ready, and tell what happens to it; returns only by
    raising SetupError, when it cannot run."""
    restart_count, state, is_announced = 0, EngineState.LOADING, False
    while True:
        status = engine.status
        if status.state is EngineState.FAILED:
            raise SetupError(status.detail)
        if engine.restart_count > restart_count:
            tell(engine.last_end)
        elif status.state is not state and status.state in told_states:
            tell(status.detail)
        restart_count, state = engine.restart_count, status.state
        if state is EngineState.READY and not is_announced:
            is_announced = True
            announce()
        await engine.status_change()
