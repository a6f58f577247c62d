"""A child process that listens on a socket of ours, and outlives its own death."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.http import server

drain_timeout_s = 60.0


class Process:
    """A child that listens on a socket of ours, so that callers wait while it starts again."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.sock = server.bind("127.0.0.1", 0)
        host, port = server.address_of(self.sock)
        self.url = f"http://{host}:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, *arguments: str, **environment: str) -> None:
        """Start it; `{fd}` in an argument is the socket's descriptor."""
        self.starts += 1
        descriptor = self.sock.fileno()
        filled = [part.replace("{fd}", str(descriptor)) for part in arguments]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- our own programs
                [sys.executable, "-m", *filled],
                pass_fds=(descriptor,),
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for who compares, not for what is compared
            )

    def ended(self) -> bool:
        """Whether it ended by itself, as when its database was away while it started."""
        return self._process is not None and self._process.poll() is not None

    def resident_bytes(self) -> int:
        """The memory that it and its children hold; 0 if it does not run."""
        if self._process is None:
            return 0
        process = psutil.Process(self._process.pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))

    def kill_children(self) -> None:
        """Kill what it has started, and not itself."""
        if self._process is None:
            return
        pid = self._process.pid
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

    def end(self, sent: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(sent)
            try:
                process.wait(drain_timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self) -> str:
        """The end of what it said."""
        return (self.directory / "log").read_text(errors="replace")[-2_000:]
