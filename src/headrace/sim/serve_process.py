"""`headrace serve` as a child process, for tests and benchmarks that want the real thing.

with ServeProcess.start("smollm2-135m-instruct") as served: ... served.url ...
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from headrace.sim.child_process import ChildProcess

ready_pattern = re.compile(r"(?P<name>\S+) is ready at (?P<url>http://\S+)/v1 ")
output_lines_max = 10_000  # kept of what the process wrote


class ServeProcess(ChildProcess):
    """One running server, ready for requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = ""
        self.model = ""
        self.output: list[str] = []  # lines of its standard error
        self._ready = threading.Event()  # also set when it ended instead
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        model: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        inherited_descriptors: Sequence[int] = (),
        python: Sequence[str] = (sys.executable, "-m", "headrace.cli.main"),
        command: str = "serve",
    ) -> "ServeProcess":
        """Start a server on a free port and wait until it is ready.

        RuntimeError with its output if it ended instead."""
        process = subprocess.Popen(  # noqa: S603 -- our own command, its arguments from a test
            [*python, command, model, "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=inherited_descriptors,
            env={**os.environ, **(environment or {})},
        )
        served = cls(process)
        served._ready.wait()
        if not served.url:
            served.stop()
            raise RuntimeError("headrace serve ended:\n" + "\n".join(served.output))
        return served

    def stop(self) -> int:
        """Ask it to end and wait until it has; its exit status."""
        status = super().stop()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if len(self.output) < output_lines_max:
                self.output.append(line.rstrip())
            found = ready_pattern.search(line)
            if found and not self.url:
                self.url, self.model = found["url"], found["name"]
                self._ready.set()
        self._ready.set()
