"""What this machine has, as far as headrace cares: processor, disks, limits.

Cores and memory, which nodes report as well, are in `launchers.machine`.
"""

import os
import platform
import resource
import shutil
from pathlib import Path

import msgspec

from headrace.launchers.machine import fields_of

cpu_info_path = Path("/proc/cpuinfo")

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


class Disk(msgspec.Struct, frozen=True):
    """A directory that headrace writes to."""

    path: str
    exists: bool
    writable: bool  # it, or the nearest parent that exists
    mode: str | None  # octal
    free_bytes: int


def read_processor(path: Path = cpu_info_path) -> Processor:
    """The processor, from /proc/cpuinfo where there is one."""
    fields = fields_of(path)
    flags = set((fields.get("flags") or fields.get("features") or "").lower().split())
    return Processor(
        name=fields.get("model name") or platform.processor() or "unknown",
        architecture=platform.machine(),
        features=[feature for feature in known_features if feature in flags],
    )


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
