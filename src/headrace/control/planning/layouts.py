"""On how many devices a model fits, for each way to spread it, and which way takes fewest.

    one replica = tensor parallel x pipeline parallel devices
    a device holds   weights / (tp pp)   KV / (min(tp, KV heads) pp)   workspace

Latent KV is the same on every device of a tensor-parallel group. What is left of a replica's memory
after weights and workspace says how many sequences it takes at the full context; as many replicas
are needed as the concurrency asks for.
"""

from dataclasses import dataclass

from headrace.base.errors import InvalidRequest
from headrace.control.planning.device import Device
from headrace.control.planning.model_shape import ModelShape
from headrace.control.planning.precision import Precision
from headrace.control.planning.sizes import (
    Demand,
    kv_bytes_of_sequence,
    weight_bytes,
    workspace_bytes,
)

pipeline_max = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spread a model, with what each device holds."""

    tensor_parallel: int
    pipeline_parallel: int
    weights_bytes: int  # of one device, as the next three
    workspace_bytes: int
    kv_bytes_free: int
    kv_bytes_needed: int  # for the concurrency of one replica
    sequences: int  # that one replica takes at the full context
    replicas: int  # for the wanted concurrency; 0: it does not fit
    reason: str = ""  # why it does not fit

    @property
    def devices_per_replica(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def devices(self) -> int:
        """Devices of all replicas; 0 if it does not fit."""
        return self.replicas * self.devices_per_replica


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a model on a device type."""

    shape: ModelShape
    precision: Precision
    device: Device
    demand: Demand
    weights_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int  # of all sequences at full context
    layouts: tuple[Layout, ...]  # the best first; those that do not fit last

    @property
    def best(self) -> Layout | None:
        """The layout of fewest devices, or None if none fits."""
        return self.layouts[0] if self.layouts[0].replicas else None


def make_plan(shape: ModelShape, precision: Precision, device: Device, demand: Demand) -> Plan:
    """Size a model and try every layout; InvalidRequest for a context beyond the model's."""
    if demand.context_tokens > shape.context_max:
        raise InvalidRequest(
            f"{shape.name} has a context of {shape.context_max:,} tokens, not "
            f"{demand.context_tokens:,}",
            param="context",
        )
    sequence = kv_bytes_of_sequence(shape, demand.context_tokens, demand.kv_bits)
    layouts = [
        make_layout(shape, precision, device, demand, (tensor, pipeline))
        for tensor in tensor_sizes(shape, device)
        for pipeline in pipeline_sizes(shape)
    ]
    layouts.sort(key=preference)
    return Plan(
        shape=shape,
        precision=precision,
        device=device,
        demand=demand,
        weights_bytes=weight_bytes(shape, precision),
        kv_bytes_per_token=-(-sequence // demand.context_tokens),
        kv_bytes=demand.concurrency * sequence,
        layouts=tuple(distinct(layouts)),
    )


def make_layout(
    shape: ModelShape,
    precision: Precision,
    device: Device,
    demand: Demand,
    sizes: tuple[int, int],
) -> Layout:
    """What one way to spread a model comes to."""
    tensor, pipeline = sizes
    weights = weight_bytes(shape, precision) // (tensor * pipeline)
    workspace = workspace_bytes(shape, demand, device, tensor)
    kv_split = 1 if shape.latent is not None else min(tensor, shape.kv_heads)
    sequence = kv_bytes_of_sequence(shape, demand.context_tokens, demand.kv_bits)
    sequence = -(-sequence // (kv_split * pipeline))
    usable = int(device.memory_bytes * device.usable_share)
    free = usable - weights - workspace
    sequences = max(0, free // sequence)
    replicas = -(-demand.concurrency // sequences) if sequences else 0
    per_replica = -(-demand.concurrency // replicas) if replicas else 1
    reason = ""
    if free <= 0:
        reason = "the weights do not fit"
    elif not sequences:
        reason = "no room for the KV of one sequence"
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        weights_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes_free=max(0, free),
        kv_bytes_needed=per_replica * sequence,
        sequences=sequences,
        replicas=replicas,
        reason=reason,
    )


def tensor_sizes(shape: ModelShape, device: Device) -> list[int]:
    """Powers of two that divide the heads, within one node's fast links."""
    sizes = [1]
    while sizes[-1] * 2 <= device.node_devices and shape.heads % (sizes[-1] * 2) == 0:
        sizes.append(sizes[-1] * 2)
    return sizes


def pipeline_sizes(shape: ModelShape) -> list[int]:
    """Powers of two up to a bound and to the layers."""
    return [size for size in (1, 2, 4, 8, pipeline_max) if size <= shape.layers]


def preference(layout: Layout) -> tuple[bool, int, int, int]:
    """Fits; few devices; short pipelines, which idle and add latency; small groups."""
    return (
        layout.replicas == 0,
        layout.devices,
        layout.pipeline_parallel,
        layout.tensor_parallel,
    )


def distinct(layouts: list[Layout]) -> list[Layout]:
    """Without longer pipelines where a shorter one with the same group fits with no more."""
    kept: list[Layout] = []
    for layout in layouts:
        if any(
            other.replicas
            and other.tensor_parallel == layout.tensor_parallel
            and other.pipeline_parallel < layout.pipeline_parallel
            for other in kept
        ):
            continue
        kept.append(layout)
    return kept
