"""One process of the platform that is started again whenever it ends, a little later each time.

    start ──ended──> pause (doubles, up to a bound) ──> start
      └── lived long enough ──> the pauses begin anew

Before the platform was ready once, a process that keeps ending is a fault that somebody must mend:
then it is an error with the process's own last words. Later it is tried for ever.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import SetupError
from headrace.launchers import log_file

backoff_first_s = 0.25
backoff_max_s = 10.0
healthy_life_s = 30.0  # after which an end is the first one again
first_starts_max = 3  # ends in a row before the platform was ever ready


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run one process."""

    name: str  # for people, and of its log file
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # the whole of it
    descriptors: tuple[int, ...]  # that it inherits
    log_path: Path


class Child:
    """One supervised process. `keep_running` is cancelled to let it end; then `stop` ends it."""

    def __init__(self, spec: ChildSpec, clock: Clock, tell: Callable[[str], None]) -> None:
        """`tell` gets a line for people whenever the process of a ready platform ended."""
        self.spec = spec
        self.restart_count = 0
        self.was_ready = False  # set by whoever saw the whole platform answer
        self._clock = clock
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._log_start_bytes = 0
        self._log_stays_long = False

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def keep_running(self) -> None:
        """Start it, and again when it ends; returns only by SetupError or cancellation."""
        ends = 0
        while True:
            started_s = self._clock.monotonic_s()
            process = await self._start()
            status = await process.wait()
            lived_s = self._clock.monotonic_s() - started_s
            ends = 1 if lived_s >= healthy_life_s else ends + 1
            if self.was_ready:
                self._tell(f"{self._last_words(status)} It is started again.")
            elif ends >= first_starts_max:
                raise SetupError(self._last_words(status))
            await asyncio.sleep(backoff_s(ends))
            self.restart_count += 1

    async def _start(self) -> asyncio.subprocess.Process:
        spec = self.spec
        try:
            log_file.cut_if_long(spec.log_path)
            self._log_start_bytes = log_file.size_bytes(spec.log_path)
            output = log_file.open_for_child(spec.log_path)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(spec.environment),
                    pass_fds=spec.descriptors,
                    start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor
                )
            finally:
                os.close(output)
        except OSError as error:
            raise SetupError(f"The {spec.name} cannot be started ({error.strerror}).") from None
        return self._process

    def _last_words(self, status: int) -> str:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        line = log_file.last_line(self.spec.log_path, self._log_start_bytes)
        said = f": {line.removeprefix('headrace: ')}" if line else ""
        return f"The {self.spec.name} {how}{said} (its log is {self.spec.log_path})."

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it after `grace_s`; it is gone and reaped on return."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    def tend_log(self) -> None:
        """Keep its log within its bound; a disk that does not let it is told of once."""
        try:
            log_file.cut_if_long(self.spec.log_path)
        except OSError as error:
            if not self._log_stays_long:
                path = self.spec.log_path
                self._tell(f"{path} is too long and cannot be cut ({error.strerror}).")
            self._log_stays_long = True
        else:
            self._log_stays_long = False


def backoff_s(ends: int) -> float:
    """How long to wait after that many ends in a row."""
    return float(min(backoff_max_s, backoff_first_s * 2 ** (min(ends, 16) - 1)))
