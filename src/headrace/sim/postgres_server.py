"""A real PostgreSQL in a temporary directory, which tests and chaos runs start, stop and kill."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil

ready_timeout_s = 120.0  # of a machine that does much else
user = "headrace"
settings = {
    # A killed server must keep what it said it kept; but a test machine's disk is nobody's money.
    "fsync": "off",
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
}


def find_program(name: str) -> str | None:
    """The program of the newest PostgreSQL on this machine, or None."""
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (directory / name).exists():
            return str(directory / name)
    return shutil.which(name)


def unprivileged_command() -> Sequence[str]:
    """What to put before a command so that root runs it as somebody else; PostgreSQL insists."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


class PostgresServer:
    """One server on a Unix socket in its own directory; `url` is how to reach it."""

    def __init__(self, directory: Path, extra_settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self._settings = {**settings, **(extra_settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the database that every server has."""
        return self.url_of("postgres")

    def url_of(self, name: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://{user}@/{name}?host={quote(str(self.directory), safe='')}"

    @staticmethod
    def missing() -> str | None:
        """Why no server can be started here, or None."""
        if find_program("initdb") is None or find_program("postgres") is None:
            return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        return None

    def create(self) -> None:
        """Make an empty cluster."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.directory, "nobody", "nogroup")
        command = (find_program("initdb") or "initdb", "-D", str(self.data_dir), "-U", user)
        options = ("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        subprocess.run(  # noqa: S603 -- the server's own program in a test's directory
            [*unprivileged_command(), *command, *options],
            check=True,
            capture_output=True,
            cwd=self.directory,
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [
            part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- as above
                [
                    *unprivileged_command(),
                    find_program("postgres") or "postgres",
                    *("-D", str(self.data_dir), "-k", str(self.directory)),
                    *options,
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        wait_for(self._accepts, "PostgreSQL")

    def stop(self) -> None:
        """Stop it as an operator would: connections are cut, what was committed is on the disk."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop it as a power cut would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Answer nothing and refuse nothing from now on, as behind a network that was cut."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on where it stood."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, sent: signal.Signals) -> None:
        """To the server and every process of it, of which there is one a connection."""
        if self._process is None:
            return
        for each in (self._process.pid, *children_of(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(each, sent)

    def _end(self, sent: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            children = children_of(process.pid)
            process.send_signal(sent)
            process.wait(ready_timeout_s)
            # A killed postmaster's children notice soon, and hold its shared memory until then.
            wait_for(lambda: not any(map(psutil.pid_exists, children)), "What was PostgreSQL")
            (self.data_dir / "postmaster.pid").unlink(missing_ok=True)

    def _accepts(self) -> bool:
        probe = subprocess.run(  # noqa: S603 -- as above
            [find_program("pg_isready") or "pg_isready", "-q", "-h", str(self.directory)],
            check=False,
        )
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text()[-2000:])
        return probe.returncode == 0


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, and that are there still."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_for(ready: Callable[[], bool], what: str) -> None:
    """Poll until `ready()` is true; RuntimeError if it is not within `ready_timeout_s`."""
    deadline_s = time.monotonic() + ready_timeout_s
    while not ready():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{what} took more than {ready_timeout_s:g} s")
        time.sleep(0.02)


def free_port() -> int:
    """A TCP port of loopback that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port
