"""The best devices of one node for one replica, and how good they are.

    score = 4 topology + fill (or room) + memory fit + warm

    topology    1 alone or in one island (NVLink), 0.6 on one NUMA node, 0.3 over PCIe between them
    fill        share of the node's devices that are in use then: full nodes leave whole ones free
    room        of a socket instead: the share of its memory that stays free, so that load spreads
    memory fit  bytes used of the bytes that become unusable for others
    warm        1/2 where the weights are cached

Among sets of equal topology the one is taken that leaves fewest fitting devices in its group, so
that large islands stay whole for replicas that need them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.control.placement.cluster import Device, Node, Option
from headrace.control.placement.filters import has_type, taken

topology_weight = 4.0
one_island, one_numa, one_node = 1.0, 0.6, 0.3
warm_weight = 0.5


@dataclass(frozen=True, slots=True)
class Fit:
    """Devices by their position in the node, with the terms of their score."""

    option: Option
    positions: tuple[int, ...]
    terms: Mapping[str, float]

    @property
    def score(self) -> float:
        """Higher is better."""
        return sum(self.terms.values())


def best_fit(
    node: Node, free_bytes: Sequence[int], option: Option, *, is_warm: bool = False
) -> Fit | None:
    """The best set of devices for a replica, or None if it does not fit."""
    groups: dict[str, list[int]] = {}
    for position, device in enumerate(node.devices):
        if free_bytes[position] >= option.memory_bytes and has_type(device.device_type, option):
            groups.setdefault(device.device_type, []).append(position)
    fits = [
        fit
        for _, positions in sorted(groups.items())
        if (fit := fit_of_type(node, free_bytes, option, positions, is_warm)) is not None
    ]
    return max(fits, key=lambda fit: fit.score, default=None)


def fit_of_type(
    node: Node,
    free_bytes: Sequence[int],
    option: Option,
    positions: list[int],
    is_warm: bool,
) -> Fit | None:
    """The same among devices of one type that have the memory."""
    count = option.device_count
    if len(positions) < count:
        return None

    def size(position: int) -> tuple[int, str]:
        return free_bytes[position], node.devices[position].id

    rungs: tuple[tuple[float, Callable[[Device], str]], ...] = (
        (one_island, lambda device: device.island or device.id),
        (one_numa, lambda device: str(device.numa)),
        (one_node, lambda device: ""),
    )
    for topology, key in rungs:
        groups: dict[str, list[int]] = {}
        for position in positions:
            groups.setdefault(key(node.devices[position]), []).append(position)
        enough = [sorted(group, key=size) for group in groups.values() if len(group) >= count]
        if enough:
            chosen = min(enough, key=lambda group: (leftover(group, count), size(group[0])))
            terms = {
                "topology": topology_weight * topology,
                **score_terms(node, free_bytes, option, chosen[:count]),
                "warm": warm_weight if is_warm else 0.0,
            }
            return Fit(option, tuple(chosen[:count]), terms)
    return None


def leftover(group: list[int], count: int) -> int:
    """Fitting devices of a group that stay free."""
    return len(group) - count


def score_terms(
    node: Node, free_bytes: Sequence[int], option: Option, positions: Sequence[int]
) -> dict[str, float]:
    """The terms that do not depend on links or caches."""
    used = sum(
        free != device.memory_bytes for device, free in zip(node.devices, free_bytes, strict=True)
    )
    bound = sum(free_bytes[position] for position in positions)
    if node.devices[positions[0]].is_shared:
        whole = sum(node.devices[position].memory_bytes for position in positions)
        return {"room": (bound - option.memory_bytes * len(positions)) / max(1, whole)}
    return {
        "fill": min(1.0, (used + len(positions)) / len(node.devices)),
        "memory fit": option.memory_bytes * len(positions) / max(1, bound),
    }


def free_after(node: Node, free_bytes: Sequence[int], fit: Fit) -> tuple[int, ...]:
    """What is free once a replica is there."""
    left = list(free_bytes)
    for position in fit.positions:
        is_shared = node.devices[position].is_shared
        left[position] = left[position] - fit.option.memory_bytes if is_shared else taken
    return tuple(left)
