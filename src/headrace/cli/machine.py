"""What this machine has, as far as headrace cares: processor, cores, memory, disks, limits.

Linux tells through /proc and the cgroup files; elsewhere POSIX's answers do. What a container may
use counts, not what the host has.
"""

import os
import platform
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

cpu_info_path = Path("/proc/cpuinfo")
memory_info_path = Path("/proc/meminfo")
cgroup_quota_path = Path("/sys/fs/cgroup/cpu.max")
cgroup_memory_path = Path("/sys/fs/cgroup/memory.max")

# What kernels are written for, or may be; the rest of a processor's flags would hide these.
known_features = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


class Processor(msgspec.Struct, frozen=True):
    """The processor's name and the instructions that kernels can use."""

    name: str
    architecture: str
    features: list[str]


class Cores(msgspec.Struct, frozen=True):
    """How much of the processor this process may use."""

    logical: int
    usable: float  # after affinity and the container's quota


class Memory(msgspec.Struct, frozen=True):
    """Bytes of memory; a container's limit counts as the total."""

    total_bytes: int
    available_bytes: int


class Disk(msgspec.Struct, frozen=True):
    """A directory that headrace writes to."""

    path: str
    exists: bool
    writable: bool  # it, or the nearest parent that exists
    mode: str | None  # octal
    free_bytes: int


def read_processor(path: Path = cpu_info_path) -> Processor:
    """The processor, from /proc/cpuinfo where there is one."""
    fields = _fields(path)
    flags = set((fields.get("flags") or fields.get("features") or "").lower().split())
    return Processor(
        name=fields.get("model name") or platform.processor() or "unknown",
        architecture=platform.machine(),
        features=[feature for feature in known_features if feature in flags],
    )


def read_cores(quota_path: Path = cgroup_quota_path) -> Cores:
    """The cores, and how many of them this process may keep busy."""
    logical = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    usable = float(len(affinity(0)) if affinity is not None else logical)
    quota = _words(quota_path)
    if len(quota) == 2 and quota[0] != "max":
        usable = min(usable, int(quota[0]) / int(quota[1]))
    return Cores(logical=logical, usable=usable)


def read_memory(
    info_path: Path = memory_info_path, limit_path: Path = cgroup_memory_path
) -> Memory:
    """Memory in all and left, inside the container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available_kib = _fields(info_path).get("memavailable", "").removesuffix("kB").strip()
    available = int(available_kib) * 1024 if available_kib.isdecimal() else total
    limit = _words(limit_path)
    if limit and limit[0] != "max" and int(limit[0]) < total:
        total = int(limit[0])
        available = min(available, total)
    return Memory(total_bytes=total, available_bytes=available)


def read_disk(path: Path) -> Disk:
    """What can be written to a directory that may not exist yet."""
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    exists = path.is_dir()
    return Disk(
        path=str(path),
        exists=exists,
        writable=nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
        mode=f"{path.stat().st_mode & 0o777:o}" if exists else None,
        free_bytes=shutil.disk_usage(nearest).free,
    )


def open_files_max() -> int:
    """How many files and sockets this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _words(path: Path) -> Sequence[str]:
    try:
        return path.read_text().split()
    except OSError:
        return ()


def _fields(path: Path) -> dict[str, str]:
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
