"""A real Redis in a temporary directory, which tests and chaos runs start, stop and kill."""

import shutil
import signal
import subprocess
from pathlib import Path

import redis

from headrace.sim.postgres_server import ready_timeout_s, wait_for


class RedisServer:
    """One server on a Unix socket in its own directory, that keeps what it was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._socket = directory / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    @staticmethod
    def missing() -> str | None:
        """Why no server can be started here, or None."""
        if shutil.which("redis-server") is None:
            return "redis-server is not installed (Debian: apt-get install redis-server)"
        return None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = ("--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "no")
        self._process = subprocess.Popen(  # noqa: S603 -- the server's own program, in a test
            [
                shutil.which("redis-server") or "redis-server",
                *settings,
                *("--unixsocket", str(self._socket), "--dir", str(self.directory)),
            ],
            stdout=subprocess.DEVNULL,
        )
        wait_for(self._accepts, "Redis")

    def stop(self) -> None:
        """Stop it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop it as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, sent: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(sent)
            process.wait(ready_timeout_s)

    def _accepts(self) -> bool:
        client = redis.Redis.from_url(self.url)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
