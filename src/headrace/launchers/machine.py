"""How much of this machine a process may use: cores and memory, as containers bound them.

Linux tells through /proc and the cgroup files; elsewhere POSIX's answers do. What a container may
use counts, not what the host has.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

memory_info_path = Path("/proc/meminfo")
cgroup_quota_path = Path("/sys/fs/cgroup/cpu.max")
cgroup_memory_path = Path("/sys/fs/cgroup/memory.max")


class Cores(msgspec.Struct, frozen=True):
    """How much of the processor this process may use."""

    logical: int
    usable: float  # after affinity and the container's quota


class Memory(msgspec.Struct, frozen=True):
    """Bytes of memory; a container's limit counts as the total."""

    total_bytes: int
    available_bytes: int


def read_cores(quota_path: Path = cgroup_quota_path) -> Cores:
    """The cores, and how many of them this process may keep busy."""
    logical = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    usable = float(len(affinity(0)) if affinity is not None else logical)
    quota = words_of(quota_path)
    if len(quota) == 2 and quota[0] != "max":
        usable = min(usable, int(quota[0]) / int(quota[1]))
    return Cores(logical=logical, usable=usable)


def read_memory(
    info_path: Path = memory_info_path, limit_path: Path = cgroup_memory_path
) -> Memory:
    """Memory in all and left, inside the container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available_kib = fields_of(info_path).get("memavailable", "").removesuffix("kB").strip()
    available = int(available_kib) * 1024 if available_kib.isdecimal() else total
    limit = words_of(limit_path)
    if limit and limit[0] != "max" and int(limit[0]) < total:
        total = int(limit[0])
        available = min(available, total)
    return Memory(total_bytes=total, available_bytes=available)


def words_of(path: Path) -> Sequence[str]:
    """The words of a small file; none if it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return ()


def fields_of(path: Path) -> dict[str, str]:
    """The first value of each `name: value` line, the names in small letters."""
    fields: dict[str, str] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields
