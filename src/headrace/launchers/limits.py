"""Bounds of one process: its processors, its memory, how readily it gives way. No cgroups needed.

    python -m headrace.launchers.limits BOUNDS PROGRAM ARGUMENT ...

Sets the bounds and becomes the program, so that the process keeps its number and no moment passes
in which the program runs without them. Memory is bounded by RLIMIT_DATA: what a process writes,
without the weights that it only maps.
"""

import math
import os
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.launchers.protocol import Resources

module = "headrace.launchers.limits"
cannot_run_status = 127  # as shells report it
niceness_max = 19


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process is to be bounded by; None or empty: not bounded."""

    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    niceness: int | None = None


def available_cpus() -> frozenset[int]:
    """The processors that this process may use; empty where the system has no affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def least_used_cpus(
    available: Collection[int], cpu_count: float | None, used: Iterable[Collection[int]]
) -> tuple[int, ...]:
    """The processors for one more launch: those that the fewest others have, neighbours first.

    Empty, which is all of them, where no count is asked for or all are."""
    if cpu_count is None:
        return ()
    wanted = max(1, math.ceil(cpu_count))
    if wanted >= len(available):
        return ()
    load = Counter(cpu for cpus in used for cpu in cpus)
    by_load = sorted(available, key=lambda cpu: (load[cpu], cpu))
    return tuple(sorted(by_load[:wanted]))


def limited(argv: Sequence[str], resources: Resources, cpus: tuple[int, ...]) -> Sequence[str]:
    """The command that runs `argv` within its bounds; `argv` itself where there are none.

    FileNotFoundError if there is no such program, as starting it at once would raise."""
    niceness = resources.niceness
    if niceness is not None and not 0 <= niceness <= niceness_max:
        raise ConfigurationError(f"a niceness is 0 to {niceness_max}, not {niceness}")
    bounds = Bounds(cpus, resources.memory_bytes, niceness)
    if bounds == Bounds():
        return argv
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(2, os.strerror(2), argv[0])
    return (sys.executable, "-m", module, msgspec.json.encode(bounds).decode(), *argv)


def apply(bounds: Bounds) -> None:
    """Bound this process, and whatever it starts or becomes."""
    if bounds.cpus:
        os.sched_setaffinity(0, bounds.cpus)
    if bounds.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory_bytes, bounds.memory_bytes))
    if bounds.niceness is not None:
        os.setpriority(os.PRIO_PROCESS, 0, bounds.niceness)


def main(arguments: Sequence[str]) -> int:
    """Become the program; returns only if that is not possible."""
    bounds, argv = msgspec.json.decode(arguments[0], type=Bounds), list(arguments[1:])
    try:
        apply(bounds)
        os.execvp(argv[0], argv)  # noqa: S606 -- an adapter's command, without a shell
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot run {argv[0]} within {arguments[0]} ({error})\n")
        return cannot_run_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
