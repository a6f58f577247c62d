"""A pipe that ends every descendant of a supervisor when the supervisor is gone.

    supervisor ── holds the write end, writes nothing
        └─ child, and what it starts ── hold the read end; a thread in each waits for its end

The kernel closes the write end however the supervisor ends, also after kill -9, and whatever
process between dies first (docs/decisions/0004). Processes that cannot watch for themselves end
with their process group, whose leader does.
"""

import os
import signal
import stat
import threading
from collections.abc import Mapping

variable = "HEADRACE_LIFELINE_FD"


class Lifeline:
    """The supervisor's end. `close` ends every process that watches; so does the supervisor's end.

    Descendants get `descriptor` (by `pass_fds`) and `environment`."""

    def __init__(self, descriptor: int, write_end: int) -> None:
        self.descriptor = descriptor
        self._write_end = write_end

    @property
    def environment(self) -> Mapping[str, str]:
        """What a child's environment needs beside the descriptor."""
        return {variable: str(self.descriptor)}

    def close(self) -> None:
        """End every process that watches; safe to repeat."""
        if self._write_end >= 0:
            os.close(self._write_end)
            os.close(self.descriptor)
            self._write_end = -1


def create() -> Lifeline:
    """A new lifeline; no process inherits its write end."""
    descriptor, write_end = os.pipe()
    return Lifeline(descriptor, write_end)


def inherited_descriptor(environment: Mapping[str, str] = os.environ) -> int | None:
    """The read end that a supervisor left to this process, or None without one."""
    text = environment.get(variable, "")
    if not text.isdecimal():
        return None
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(int(text)).st_mode)
    except OSError:
        return None  # the variable came through a process that closed the pipe
    return int(text) if is_pipe else None


def watch_from_environment() -> None:
    """End this process, and its group where it leads one, once the supervisor is gone.

    Does nothing where no supervisor left a lifeline."""
    descriptor = inherited_descriptor()
    if descriptor is not None:
        threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
