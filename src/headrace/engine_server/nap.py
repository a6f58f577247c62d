"""Whether the operator has put the engine to sleep, and how deep."""

import asyncio

levels = (1, 2)  # without KV; without weights too, which ends the engine process
process_level = 2


class Nap:
    """One sleep after the other."""

    def __init__(self) -> None:
        self.level = 0  # 0: awake
        self._ended = asyncio.Event()

    @property
    def ends_process(self) -> bool:
        """Whether no engine process is to run."""
        return self.level >= process_level

    def begin(self, level: int) -> None:
        """Fall asleep, or deeper."""
        assert level in levels
        self.level = level
        self._ended.clear()

    def end(self) -> None:
        """Wake up."""
        self.level = 0
        self._ended.set()

    async def wait_process(self) -> None:
        """Wait until an engine process may run."""
        while self.ends_process:
            await self._ended.wait()
