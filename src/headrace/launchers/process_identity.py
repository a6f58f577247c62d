"""Telling one process from a later one that got the same number.

A pid alone names whoever has it now. The moment of its start, counted from the machine's boot,
makes it unique; a wall clock would not do, because it is set while processes run.
"""

import contextlib
import os
import signal
from pathlib import Path

import psutil

proc_root = Path("/proc")
state_field, start_field = 0, 19  # of /proc/PID/stat after the command's closing parenthesis


def birth_of(pid: int, proc: Path = proc_root) -> str | None:
    """A mark that this process alone has, or None if there is none or it has ended (a zombie)."""
    if not (proc / "self").exists():
        return _birth_by_wall_clock(pid)
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = _boot_id(proc)
    except OSError:
        return None
    return None if fields[state_field] in "ZX" else f"{boot} {fields[start_field]}"


def _birth_by_wall_clock(pid: int) -> str | None:
    """The same where there is no /proc: the system keeps the start as a fixed time there."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            ended = process.status() == psutil.STATUS_ZOMBIE
            return None if ended else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def is_same_boot(birth: str) -> bool:
    """Whether a mark was made since this machine started; True where marks do not tell."""
    boot, separator, _ = birth.partition(" ")
    return not separator or boot == _boot_id(proc_root)


def kill_session(leader_pid: int) -> None:
    """End every process of the session that a launch led, the leader among them.

    The session is asked of each process, so that a group of somebody else's that has the number
    by chance is left alone."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader_pid:
                os.kill(pid, signal.SIGKILL)


def find_leader(variable: str, value: str) -> int | None:
    """The process that leads a session and has this in its environment, or None."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(pid) == pid and psutil.Process(pid).environ().get(variable) == value:
                return pid
    return None


def _boot_id(proc: Path) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
