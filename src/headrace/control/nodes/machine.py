"""What a machine has for replicas: accelerators by NVML, processor sockets by sysfs.

Accelerators that are joined by NVLink make an island; PCIe and NUMA say how far the others are.
NVML comes with an extra; a machine without it, or without a driver, has its sockets alone.
"""

import importlib
import logging
import re
from pathlib import Path
from types import ModuleType

from headrace.base.errors import ConfigurationError
from headrace.control.planning.device import known_devices
from headrace.launchers.machine import read_cores, read_memory
from headrace.spec.nodes import Inventory, NodeDevice

logger = logging.getLogger(__name__)

numa_dir = Path("/sys/devices/system/node")
pci_dir = Path("/sys/bus/pci/devices")
memory_pattern = re.compile(r"MemTotal:\s+(\d+) kB")
cpu_type = "CPU"


def read_inventory(address: str, nvml: ModuleType | None) -> Inventory:
    """This machine as it is now; `address` is where its replicas listen."""
    cores, memory = read_cores(), read_memory()
    accelerators = () if nvml is None else read_accelerators(nvml)
    return Inventory(
        devices=(*accelerators, *read_sockets(memory.total_bytes)),
        cpu_count=cores.usable,
        memory_bytes=memory.total_bytes,
        address=address,
    )


def read_sockets(memory_bytes: int, directory: Path = numa_dir) -> tuple[NodeDevice, ...]:
    """Memory by NUMA node, scaled to all that may be used; one socket where none is told.

    A container may use less than the nodes have, and the nodes of some virtual machines tell less
    than the machine has, another number each time."""
    found: dict[int, int] = {}
    for path in directory.glob("node[0-9]*/meminfo"):
        match = memory_pattern.search(path.read_text(errors="replace"))
        if match and int(match[1]):
            found[int(path.parent.name.removeprefix("node"))] = int(match[1]) << 10
    total = sum(found.values())
    if not total:
        found, total = {0: memory_bytes}, memory_bytes
    return tuple(
        NodeDevice(
            id=f"cpu{number}",
            device_type=cpu_type,
            memory_bytes=size * memory_bytes // total,
            numa=number,
            is_shared=True,
        )
        for number, size in sorted(found.items())
    )


def find_nvml() -> ModuleType | None:
    """NVML, where its package and a driver are installed; the log says what it lacks."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.info("no accelerators by NVML: %s", error)
        return None
    return nvml


def read_accelerators(nvml: ModuleType) -> tuple[NodeDevice, ...]:
    """The NVIDIA devices with their islands. ConfigurationError if the driver fails midway."""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        islands = islands_of(nvml, handles)
        return tuple(
            NodeDevice(
                id=text(nvml.nvmlDeviceGetUUID(handle)),
                device_type=type_of(text(nvml.nvmlDeviceGetName(handle))),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                numa=numa_of(text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
                island=islands[position],
            )
            for position, handle in enumerate(handles)
        )
    except nvml.NVMLError as error:
        raise ConfigurationError(f"the driver's NVML failed ({error}); see nvidia-smi") from None


def islands_of(nvml: ModuleType, handles: list[object]) -> list[str]:
    """Which devices NVLink joins, directly or by others; empty for those that it does not."""
    island = list(range(len(handles)))
    for one in range(len(handles)):
        for other in range(one):
            if are_linked(nvml, handles[one], handles[other]):
                here, there = island[one], island[other]
                island = [min(here, there) if i in (here, there) else i for i in island]
    return [f"nvlink{i}" if island.count(i) > 1 else "" for i in island]


def are_linked(nvml: ModuleType, one: object, other: object) -> bool:
    """Whether NVLink joins two devices; a driver that can't tell says no."""
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def type_of(name: str) -> str:
    """The name on the box: `NVIDIA H100 80GB HBM3` is an H100."""
    plain = name.upper().replace(" ", "").replace("-", "")
    known = [device for device in known_devices if device in plain]
    if known:
        return max(known, key=len)
    return name.upper().removeprefix("NVIDIA ").replace(" ", "-")


def numa_of(bus_id: str, directory: Path = pci_dir) -> int:
    """The NUMA node of a PCI device; 0 where the kernel does not say."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return max(0, int((directory / f"{domain[-4:]}:{rest}" / "numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def text(value: str | bytes) -> str:
    """NVML's strings, which are bytes in some versions."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
