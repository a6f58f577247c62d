"""Replicas as processes of this machine, found again after a restart of what started them.

Each launch leads a session and a process group of its own, appends its output to a file, and is
written down in a record with the mark of its birth, so that a later process with the same number is
never taken for it. Nothing here reaps or signals what was not started here or by that record.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, Conflict, SetupError
from headrace.base.ids import new_id
from headrace.launchers import lifeline, log_file
from headrace.launchers.environment import inherited
from headrace.launchers.guard import guarded
from headrace.launchers.limits import available_cpus, least_used_cpus, limited
from headrace.launchers.process_identity import (
    birth_of,
    find_leader,
    is_same_boot,
    kill_session,
)
from headrace.launchers.protocol import (
    Launch,
    LaunchSpec,
    LaunchState,
    Place,
    Resources,
    check_one_node,
    checked_name,
    no_resources,
)

loopback = "127.0.0.1"
remembered_ports_max = 64  # lately chosen, perhaps not yet taken by the launch they are for
port_attempts_max = 2 * remembered_ports_max
look_interval_s = 0.02  # between looks at a process that is to end
record_suffix = ".json"
launch_variable = "HEADRACE_LAUNCH_ID"  # marks a process until its record has its number


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a launch to find it again."""

    launch_id: str
    name: str
    pid: int = 0  # 0: about to be started when this was written
    birth: str = ""  # `process_identity.birth_of` right after the start
    log_start_bytes: int  # where its output begins in its log file
    cpus: tuple[int, ...] = ()  # the processors that are its own; empty: all


@dataclass(slots=True)
class KnownLaunch:
    """A launch of this life, or one adopted from a record."""

    record: LaunchRecord
    process: subprocess.Popen[bytes] | None = None  # None: adopted
    swept: bool = False  # it ended, and so did what it started


class ProcessLauncher:
    """A launcher of local processes; safe from any thread.

    `records_dir` and `logs_dir` are this launcher's own; they are made if missing."""

    def __init__(
        self,
        records_dir: Path,
        logs_dir: Path,
        lifeline_descriptor: int | None,
        clock: Clock,
        host: str = loopback,
    ) -> None:
        """Adopt what the records name. `lifeline.inherited_descriptor()` is what children get.

        `host` is this machine's address for the callers of its launches."""
        self._host = host
        self._records_dir = records_dir
        self._logs_dir = logs_dir
        self._lifeline_descriptor = lifeline_descriptor
        self._clock = clock
        self._lock = threading.Lock()
        self._ports: deque[int] = deque(maxlen=remembered_ports_max)
        for directory in (records_dir, logs_dir):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(
                    f"cannot make the directory {directory} ({error.strerror}); check that the "
                    "data directory belongs to this user"
                ) from None
        self._launches = {
            record.launch_id: KnownLaunch(completed(record)) for record in read_records(records_dir)
        }

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """A port of `host` that nothing listens on and that was not lately given out.

        SetupError if the launch is to span several nodes."""
        check_one_node(resources)
        port = self._free_port()
        return Place(self._host, port, f"http://{self._host}:{port}")

    def _free_port(self) -> int:
        for _ in range(port_attempts_max):
            with socket.socket() as sock:
                sock.bind((self._host, 0))
                port = int(sock.getsockname()[1])
            with self._lock:
                if port not in self._ports:
                    self._ports.append(port)
                    return port
        raise SetupError("this machine has no free port left; stop something that listens")

    def start(self, spec: LaunchSpec) -> str:
        """Start a process and return its launch id. An ended launch of this name is forgotten.

        Conflict if one of this name runs; SetupError if the program cannot be run."""
        checked_name(spec.name)
        with self._lock:
            for known in [k for k in self._launches.values() if k.record.name == spec.name]:
                if self._is_alive(known):
                    raise Conflict(f"a launch named {spec.name} runs already; stop it first")
                self._forget(known)
            known = self._spawn(spec)
            self._launches[known.record.launch_id] = known
            return known.record.launch_id

    def list(self) -> list[Launch]:
        """Every launch that runs, or ended and was not forgotten, also those of an earlier life."""
        with self._lock:
            launches = [self._look_at(known) for known in self._launches.values()]
        for launch in launches:
            if launch.state is LaunchState.RUNNING:
                log_file.cut_if_long(self._log_path(launch.name))
        return launches

    def stop(self, launch_id: str, grace_s: float) -> None:
        """SIGTERM to the process, SIGKILL to its whole session after `grace_s`; gone on return."""
        with self._lock:
            known = self._launches.get(launch_id)
        if known is None:
            return
        if self._is_alive(known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(known.record.pid, signal.SIGTERM)
            if not self._ended_within(known, grace_s):
                kill_session(known.record.pid)
                self._wait_ended(known)
        with self._lock:
            if self._launches.get(launch_id) is known:
                self._end_session(known)
                self._forget(known)

    def log(self, name: str, bytes_max: int) -> bytes:
        """The end of the file that the launches of this name write to."""
        return log_file.tail(self._log_path(checked_name(name)), bytes_max)

    def close(self) -> None:
        """Nothing is held but the records, which are written."""

    def _spawn(self, spec: LaunchSpec) -> KnownLaunch:
        """Start a process between two writes of its record, so that no kill can lose it."""
        log_path = self._log_path(spec.name)
        process: subprocess.Popen[bytes] | None = None
        record = LaunchRecord(
            launch_id=new_id("lau", self._clock),
            name=spec.name,
            log_start_bytes=0,
            cpus=self._choose_cpus(spec.resources.cpu_count),
        )
        try:
            log_file.cut_if_long(log_path)
            record = msgspec.structs.replace(record, log_start_bytes=log_file.size_bytes(log_path))
            self._write_record(record)
            process = self._open_process(spec, record, log_path)
            # A birth that cannot be read is that of a process that has ended already.
            record = msgspec.structs.replace(
                record, pid=process.pid, birth=birth_of(process.pid) or ""
            )
            self._write_record(record)
        except OSError as error:
            if process is not None:
                kill_session(process.pid)
                process.wait()
            self._record_path(record.launch_id).unlink(missing_ok=True)
            raise SetupError(
                f"cannot start {spec.name} ({error.strerror}: {error.filename})"
            ) from None
        return KnownLaunch(record, process)

    def _open_process(
        self, spec: LaunchSpec, record: LaunchRecord, log_path: Path
    ) -> subprocess.Popen[bytes]:
        environment = {
            **inherited(os.environ),
            **visible_devices(spec.resources.device_ids),
            **spec.environment,
            launch_variable: record.launch_id,
        }
        descriptors: tuple[int, ...] = ()
        if self._lifeline_descriptor is not None:
            descriptors = (self._lifeline_descriptor,)
            environment[lifeline.variable] = str(self._lifeline_descriptor)
        argv = spec.argv if spec.watches_lifeline else guarded(spec.argv)
        output = log_file.open_for_child(log_path)
        try:
            return subprocess.Popen(  # noqa: S603 -- an adapter's command, without a shell
                limited(argv, spec.resources, record.cpus),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        finally:
            os.close(output)

    def _choose_cpus(self, cpu_count: float | None) -> tuple[int, ...]:
        running = [k.record.cpus for k in self._launches.values() if self._is_alive(k)]
        return least_used_cpus(available_cpus(), cpu_count, running)

    def _look_at(self, known: KnownLaunch) -> Launch:
        record = known.record
        if self._is_alive(known):
            return Launch(record.launch_id, record.name, LaunchState.RUNNING)
        self._end_session(known)
        return Launch(
            record.launch_id,
            record.name,
            LaunchState.ENDED,
            exit_status=None if known.process is None else known.process.returncode,
            last_line=log_file.last_line(self._log_path(record.name), record.log_start_bytes),
        )

    @staticmethod
    def _is_alive(known: KnownLaunch) -> bool:
        return known.record.birth != "" and birth_of(known.record.pid) == known.record.birth

    def _ended_within(self, known: KnownLaunch, timeout_s: float) -> bool:
        deadline_s = self._clock.monotonic_s() + timeout_s
        pause = threading.Event()
        while self._is_alive(known):
            if self._clock.monotonic_s() >= deadline_s:
                return False
            pause.wait(look_interval_s)
        return True

    def _wait_ended(self, known: KnownLaunch) -> None:
        """Wait for the end of what SIGKILL was sent to; the kernel lets nothing refuse it."""
        pause = threading.Event()
        while self._is_alive(known):
            pause.wait(look_interval_s)

    @staticmethod
    def _end_session(known: KnownLaunch) -> None:
        """End what an ended leader left behind, then reap the leader.

        While the leader is not reaped, or one of its session lives, its number is not given anew,
        and later it is checked that no new process has it."""
        pid, birth = known.record.pid, known.record.birth
        if known.process is not None:
            if known.process.returncode is None:
                kill_session(pid)
                known.process.wait()
        elif not known.swept and birth and is_same_boot(birth) and birth_of(pid) is None:
            kill_session(pid)
        known.swept = True

    def _forget(self, known: KnownLaunch) -> None:
        self._end_session(known)
        self._record_path(known.record.launch_id).unlink(missing_ok=True)
        self._launches.pop(known.record.launch_id, None)

    def _log_path(self, name: str) -> Path:
        return self._logs_dir / f"{name}.log"

    def _record_path(self, launch_id: str) -> Path:
        return self._records_dir / f"{launch_id}{record_suffix}"

    def _write_record(self, record: LaunchRecord) -> None:
        """Write it whole or not at all."""
        path = self._record_path(record.launch_id)
        partial = path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
        partial.replace(path)


def visible_devices(device_ids: Sequence[str]) -> dict[str, str]:
    """What keeps a process to its own accelerators, by NVIDIA's ids; nothing where it has none."""
    own = [device_id for device_id in device_ids if device_id.startswith(("GPU-", "MIG-"))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}


def read_records(records_dir: Path) -> list[LaunchRecord]:
    """The records of an earlier life; what is not one is left alone."""
    records = []
    for path in sorted(records_dir.glob(f"*{record_suffix}")):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            records.append(msgspec.json.decode(path.read_bytes(), type=LaunchRecord))
    return records


def completed(record: LaunchRecord) -> LaunchRecord:
    """The record of a start that was cut short by a kill, with its process if there is one."""
    if record.pid:
        return record
    pid = find_leader(launch_variable, record.launch_id)
    if pid is None:
        return record
    return msgspec.structs.replace(record, pid=pid, birth=birth_of(pid) or "")
