"""The NUMA nodes of this machine: which cores are near which memory, as Linux tells under /sys.

    node*/cpulist     "0-7,16-23"
    node*/meminfo     "Node 0 MemFree:  4096 kB", ...

Where the system tells nothing, all cores are one node.
"""

import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from headrace.launchers.machine import read_memory

numa_dir = Path("/sys/devices/system/node")
# Free, or held by files that can be read again.
free_fields = ("MemFree", "Active(file)", "Inactive(file)")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Cores that this process may use, and the memory that is theirs."""

    number: int
    cores: tuple[int, ...]  # at least one
    free_bytes: int


def read_nodes(directory: Path = numa_dir, allowed: Set[int] | None = None) -> tuple[NumaNode, ...]:
    """The nodes that have cores which this process, or `allowed`, may use; at least one."""
    usable = _own_cores() if allowed is None else allowed
    nodes = []
    for path in sorted(directory.glob("node[0-9]*"), key=_number):
        cores = tuple(core for core in cores_of(_read(path / "cpulist")) if core in usable)
        if cores:  # a node may be memory alone
            nodes.append(NumaNode(_number(path), cores, _free_bytes(_read(path / "meminfo"))))
    if nodes:
        return tuple(nodes)
    return (NumaNode(0, tuple(sorted(usable)), read_memory().available_bytes),)


def cores_of(text: str) -> list[int]:
    """The numbers of a list like "0-3,8"; what is none is left out."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            cores += range(int(first), int(last or first) + 1)
    return cores


def _free_bytes(text: str) -> int:
    total = 0
    for line in text.splitlines():  # Node 0 MemFree:  4096 kB
        words = line.split()
        if len(words) >= 4 and words[2].rstrip(":") in free_fields and words[3].isdecimal():
            total += int(words[3]) << 10
    return total


def _own_cores() -> Set[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity is not None else set(range(os.cpu_count() or 1))


def _number(path: Path) -> int:
    digits = path.name.removeprefix("node")
    return int(digits) if digits.isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
