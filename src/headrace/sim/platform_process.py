"""`headrace up` as a child process, for tests and benchmarks that want the whole platform.

with PlatformProcess.start(directory, "--demo") as platform: ... platform.gateway_url ...
"""

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from headrace.cli.platform_files import PlatformFiles
from headrace.launchers.process import LaunchRecord, read_records
from headrace.sim.child_process import ChildProcess, wait_until
from headrace.spec.deployments import Replica, ReplicaState
from headrace.spec.engine_key import engine_key_of
from headrace.storage import open_sqlite

# Every process of one tree has it in its environment; launches inherit names that begin like this.
marker = "XDG_HEADRACE_PLATFORM_MARKER"
admin_timeout_s = 60.0


class PlatformProcess(ChildProcess):
    """One running platform on free ports, ready for requests."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.ready_file = directory / "ready.json"
        self._marker = secrets.token_hex(16)
        self._errors = directory / "errors.txt"
        self._output = directory / "output.txt"
        directory.mkdir(parents=True, exist_ok=True)
        with self._errors.open("wb") as errors, self._output.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 -- our own command, its arguments from a test
                [*command(), *self._options(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, marker: self._marker},
            )
        self.gateway_url = self.admin_url = self.api_key = self.admin_token = ""

    def _options(self) -> Sequence[str]:
        return (
            *("--data-dir", str(self.data_dir), "--ready-file", str(self.ready_file)),
            *("--port", "0", "--admin-port", "0"),
        )

    @classmethod
    def start(cls, directory: Path, *arguments: str) -> "PlatformProcess":
        """Start a platform and wait until it is ready; RuntimeError if it ended instead."""
        platform = cls(directory, *arguments)
        try:
            wait_until(lambda: platform.ready_file.exists() or platform.process.poll() is not None)
            if platform.process.returncode is not None:
                raise RuntimeError(f"headrace up ended:\n{platform.errors}")
        except BaseException:
            platform.stop()
            raise
        access = json.loads(platform.ready_file.read_bytes())
        platform.gateway_url, platform.admin_url = access["gateway_url"], access["admin_url"]
        platform.api_key, platform.admin_token = access["api_key"], access["admin_token"]
        return platform

    def admin(self, method: str, path: str, **body: object) -> Any:
        """Ask the admin API with what it takes by name, and read its JSON; HTTPError if refused."""
        request = urllib.request.Request(  # noqa: S310 -- our own listener on loopback
            f"{self.admin_url}/admin/v1{path}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={
                "Authorization": f"Bearer {self.admin_token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=admin_timeout_s) as answer:  # noqa: S310
            content = answer.read()
        return json.loads(content) if content else None

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text(errors="replace")

    @property
    def output(self) -> str:
        """What it wrote to standard output."""
        return self._output.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """Every process that it started, whoever is its parent by now; zombies have ended."""
        found = []
        for process in psutil.process_iter():
            try:
                inherited = process.environ().get(marker) == self._marker
                if inherited and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def part(self, name: str) -> psutil.Process:
        """The gateway's or the control plane's process."""
        (found,) = [process for process in self.tree() if name in process.cmdline()[3:4]]
        return found

    def launches(self) -> list[LaunchRecord]:
        """The records of its replicas' processes."""
        return read_records(self.data_dir / "run" / "replicas")

    def replicas(self) -> list[Replica]:
        """Its replicas, as the store has them."""
        database = open_sqlite(self.data_dir / "headrace.db")
        try:
            return database.store.list(Replica)
        finally:
            database.close()

    def pepper(self) -> bytes:
        """What its secrets follow from."""
        return PlatformFiles(self.data_dir).read_pepper()

    def engine_key(self, replica: Replica) -> str:
        """What a replica's engine asks for."""
        return engine_key_of(self.pepper(), replica)

    def stored_bytes(self) -> bytes:
        """Its database as it lies on the disk; the log first, whose pages move to the main file."""
        files = sorted(self.data_dir.glob("headrace.db*"), reverse=True)
        return b"\n".join(path.read_bytes() for path in files)

    def wait_active(self, count: int) -> None:
        """Wait until so many replicas serve."""
        wait_until(
            lambda: [replica.state for replica in self.replicas()] == [ReplicaState.ACTIVE] * count
        )


def command() -> tuple[str, ...]:
    """What starts a platform."""
    return (sys.executable, "-m", "headrace.cli.main", "up")
