"""Why a node cannot take a replica, in words; None where it can."""

import math
from collections.abc import Sequence

from headrace.control.placement.cluster import Node, Option, Request, Tenant

taken = -1  # bytes free on a device that a replica has alone


def standing_reason(node: Node, request: Request) -> str | None:
    """What is against a node whatever runs there."""
    if node.closed_reason:
        return node.closed_reason
    for name, wanted in sorted(request.node_labels.items()):
        found = node.labels.get(name)
        if found != wanted:
            has = "has no such label" if found is None else f"has {found}"
            return f"the label {name}={wanted} is wanted; it {has}"
    unwelcome = sorted(node.taints - request.tolerations)
    if unwelcome:
        return f"it has the taint {unwelcome[0]}, which is not tolerated"
    if request.cpu_count is not None and request.cpu_count > (node.cpu_count or math.inf):
        return f"{request.cpu_count:g} processors wanted; it has {node.cpu_count:g}"
    return None


def company_reason(tenants: frozenset[Tenant], request: Request) -> str | None:
    """What is against a node because of who runs there; being apart goes both ways."""
    unwelcome = sorted(
        tenant.name
        for tenant in tenants
        if tenant.name in request.apart_from or request.name in tenant.apart_from
    )
    if not unwelcome:
        return None
    if unwelcome[0] == request.name:
        return "a replica of the same deployment runs there, and they are to be apart"
    return f"a replica of {unwelcome[0]} runs there, and they are to be apart"


def capacity_reason(node: Node, free_bytes: Sequence[int], option: Option) -> str | None:
    """What is against one way to run a replica there; counts the device type that has most."""
    known = [d for d in node.devices if has_type(d.device_type, option)]
    if not known:
        wanted = " or ".join(sorted(option.device_types)) or "device"
        return f"it has no {wanted}"
    most: dict[str, int] = {}
    large: dict[str, int] = {}
    for device, free in zip(node.devices, free_bytes, strict=True):
        if has_type(device.device_type, option):
            fits = free >= option.memory_bytes
            most[device.device_type] = most.get(device.device_type, 0) + fits
            roomy = device.memory_bytes >= option.memory_bytes
            large[device.device_type] = large.get(device.device_type, 0) + roomy
    if max(most.values()) >= option.device_count:
        return None
    gib = option.memory_bytes / (1 << 30)
    wanted = f"{option.device_count} of one type with {gib:.1f} GiB wanted"
    if max(large.values()) < option.device_count:
        return f"{wanted}; it has {max(large.values())}"
    return f"{wanted}; {max(most.values())} of {max(large.values())} free"


def has_type(device_type: str, option: Option) -> bool:
    """Whether a device is of a type that is wanted."""
    return not option.device_types or device_type in option.device_types
