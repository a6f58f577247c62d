"""Device types with their memory, by the name on the box; `H100:80GB` says both."""

import re
from dataclasses import dataclass

from headrace.base.errors import InvalidRequest

gib = 1 << 30
spec_pattern = re.compile(
    r"(?P<name>[A-Za-z][\w -]*)(?::(?P<gb>\d+(?:\.\d+)?)\s*(?:GB|GiB)?)?", re.I
)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or the memory of a machine."""

    name: str
    memory_bytes: int
    node_devices: int = 8  # joined by fast links, so that layers can be shared over them
    usable_share: float = 0.92  # the rest is the driver's, the runtime's and fragmentation's
    is_cpu: bool = False


# Memory in units of 2**30, which is what those boxes hold though they say GB.
known_devices = {
    "H100": (80, 8),
    "H200": (141, 8),
    "H20": (96, 8),
    "B200": (180, 8),
    "B300": (288, 8),
    "GB200": (186, 4),
    "A100": (80, 8),
    "A10": (24, 4),
    "A10G": (24, 4),
    "A40": (48, 8),
    "L4": (24, 8),
    "L40S": (48, 8),
    "T4": (16, 4),
    "V100": (32, 8),
    "RTX4090": (24, 4),
    "RTX5090": (32, 4),
    "RTX6000": (96, 8),
    "MI250": (128, 8),
    "MI300X": (192, 8),
    "MI325X": (256, 8),
    "MI355X": (288, 8),
    "GAUDI3": (128, 8),
    "CPU": (64, 1),
}


def parse_device(text: str) -> Device:
    """`H100`, `A100:40GB`, `CPU:256GB`; a type that is not known needs its memory.

    InvalidRequest says what is wrong."""
    found = spec_pattern.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest(f"{text!r} is no device; write H100 or H100:80GB", param="device")
    name = found["name"].replace(" ", "").replace("-", "").upper()
    known = known_devices.get(name)
    if known is None and found["gb"] is None:
        names = ", ".join(known_devices)
        raise InvalidRequest(
            f"the memory of {text!r} is not known: write {text}:24GB, or one of {names}",
            param="device",
        )
    default_gb, node_devices = known or (0, 8)
    memory = float(found["gb"] or default_gb) * gib
    is_cpu = name == "CPU"
    return Device(name, int(memory), node_devices, 0.9 if is_cpu else 0.92, is_cpu)
