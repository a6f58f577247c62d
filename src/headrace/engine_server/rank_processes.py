"""The ranks beside the engine process, as it sees them: started, heard of, and never missed.

    engine process, rank 0 ── standard input of each other rank: its start, then adapters
            ◀── standard output: "ready", or why it could not load; the same of each adapter

A rank ends when its standard input does, so none outlives the engine, however that ends. An engine
whose rank has ended would wait for it forever: it ends too, and the HTTP process starts all again.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

import msgspec

from headrace.base.errors import SetupError
from headrace.engine.ranks import RankPlace
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.weights_check import forget_packed, lost_page_text
from headrace.weights.lora.adapter import LoraAdapter

rank_command = (sys.executable, "-m", "headrace.engine_server.rank_process")
exit_grace_s = 5.0
report_wait_s = 300.0  # for what a rank says of a part that the first has loaded, or an adapter

OnDeath = Callable[[str], None]


class RankStart(msgspec.Struct, frozen=True):
    """What a rank is to load."""

    config: EngineConfig
    rank: int
    ranks: int


class RankLoad(msgspec.Struct, frozen=True, tag="load"):
    """Put an adapter into a slot, and report."""

    slot: int
    path: str
    digest: str  # of what the first rank read there


class RankUnload(msgspec.Struct, frozen=True, tag="unload"):
    """Free a slot; there is nothing to report."""

    slot: int


RankOrder = RankLoad | RankUnload


class RankReport(msgspec.Struct, frozen=True):
    """What a rank says of its start, and of each adapter."""

    error: str = ""  # empty: it is ready


class RankProcesses:
    """The other ranks of a model; `close` ends them."""

    def __init__(self, config: EngineConfig, command: Sequence[str] = rank_command) -> None:
        """Start them; they load at once. OSError if the system starts no more processes."""
        self._config = config
        self._ranks = config.tensor_parallel
        self._closing = False
        self._loading = threading.Lock()  # one adapter at a time: reports come in order
        self._descriptor = _shared_file()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, self._ranks):
                self._processes.append(self._start(RankStart(config, rank, self._ranks), command))
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> RankPlace:
        """Rank 0's, which is this process."""
        return RankPlace(0, self._ranks, self._descriptor, self)

    @property
    def pids(self) -> list[int]:
        """The processes, in the order of their ranks."""
        return [process.pid for process in self._processes]

    def wait_ready(self, wait_s: float = report_wait_s) -> None:
        """Wait until each has loaded its part; SetupError says why one has not.

        One that says nothing for `wait_s` after the one before is not waited for."""
        for rank, process in enumerate(self._processes, 1):
            if not _has_spoken(process, wait_s):
                raise SetupError(
                    f"{self._name(rank)} has not loaded its part {wait_s:g} s after the rank "
                    "before it: see whether it is stopped or its disk hangs, and start again."
                )
            if error := _report_of(process):
                raise SetupError(f"{self._name(rank)}{error}")

    def load_adapter(self, slot: int, adapter: LoraAdapter, wait_s: float = report_wait_s) -> None:
        """Let every rank read an adapter; SetupError says why one has not, and then none has it.

        One that says nothing for `wait_s` is killed, which ends the engine."""
        with self._loading:
            self._tell(RankLoad(slot, str(adapter.path), adapter.digest))
            for process in self._processes:
                if not _has_spoken(process, wait_s):
                    process.kill()
            errors = [
                f"{self._name(rank)}{error}"
                for rank, process in enumerate(self._processes, 1)
                if (error := _report_of(process))
            ]
        if errors:
            self.unload_adapter(slot)
            raise SetupError(errors[0])

    def unload_adapter(self, slot: int) -> None:
        """Let every rank free a slot; returns before they have."""
        self._tell(RankUnload(slot))

    def watch(self, on_death: OnDeath) -> None:
        """Call `on_death` with the reason, on a thread of its own, if a rank ends by itself."""
        for rank, process in enumerate(self._processes, 1):
            arguments = (self._name(rank), process, on_death)
            threading.Thread(target=self._watch, args=arguments, daemon=True).start()

    def close(self) -> None:
        """End them, and wait until they have ended; safe to repeat."""
        self._closing = True
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is gone
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(exit_grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _start(self, start: RankStart, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(  # noqa: S603 -- our own program
            [*command, str(self._descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._descriptor,),
        )
        _write(process, start)
        return process

    def _tell(self, order: RankOrder) -> None:
        for process in self._processes:
            _write(process, order)

    def _watch(self, name: str, process: "subprocess.Popen[bytes]", on_death: OnDeath) -> None:
        process.wait()
        if self._closing:
            return
        how = _ending(process)
        if process.returncode == -signal.SIGBUS and forget_packed(self._config):
            how += f" ({lost_page_text})"
        on_death(f"{name} ended: {how}; the engine cannot go on without it")

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {self._ranks} (process {self._processes[rank - 1].pid})"


def end_engine(reason: str) -> None:
    """Say why, and end this process at once, whatever it computes; its parent starts another."""
    sys.stderr.write(f"headrace: {reason}\n")
    sys.stderr.flush()
    os._exit(1)


def _write(process: "subprocess.Popen[bytes]", message: RankStart | RankOrder) -> None:
    """One line; of threads that write at once each has its own."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, which its missing report tells
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        process.stdin.flush()


def _has_spoken(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Whether there is a report, or an end, within so long."""
    assert process.stdout is not None
    told = select.poll()
    told.register(process.stdout, select.POLLIN)
    return bool(told.poll(timeout_s * 1000))


def _report_of(process: "subprocess.Popen[bytes]") -> str:
    """What went wrong, behind the rank's name; empty if it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        return f" ended while it loaded: {_ending(process)}."
    report = msgspec.json.decode(line, type=RankReport)
    return report.error and f": {report.error}"


def _ending(process: "subprocess.Popen[bytes]") -> str:
    status = process.wait()
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _shared_file() -> int:
    """A file without a name, for memory that this process and its children share."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-ranks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
