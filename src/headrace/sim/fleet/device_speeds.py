"""A device's time model from its data sheet and a model's shape, for devices nobody measured here.

What a step is bound by, at the share of the data sheet's figures that engines reach in practice:

    weights_s        = bytes of the weights that a step reads / (bandwidth x 0.8)
    row_s            = 2 FLOP x active parameters / (FLOP/s x 0.5)
    context_token_s  = KV bytes of a token / (bandwidth x 0.8)

The two shares are assumptions; measure your own engine and write its numbers into the scenario
where a decision depends on them. A mixture of experts reads all of its experts in every step, which
is so once a step has many rows.
"""

from dataclasses import dataclass

from headrace.base.errors import InvalidRequest
from headrace.control.planning.device import parse_device
from headrace.control.planning.model_shape import ModelShape
from headrace.control.planning.precision import Precision
from headrace.control.planning.sizes import kv_bytes_of_sequence, weight_bytes
from headrace.control.planning.speeds import prompt_token_s, reached_compute, speeds
from headrace.sim.fleet.device import DeviceModel

reached_bandwidth = 0.8
step_overhead_s = 0.0015  # launching kernels and scheduling
hop_s = 1.2e-5  # one all-reduce of a decode step over NVLink; two a layer
kv_share = 0.9  # of what the weights leave
weights_share_max = 0.7  # of the memory, or there is no room for anybody's KV
tensor_sizes = (1, 2, 4, 8)
kv_bits = 16


@dataclass(frozen=True, slots=True)
class ReplicaDevice:
    """One replica: so many devices of a type, as one device of the simulator."""

    name: str
    devices: int  # that share each layer
    model: DeviceModel


def derive(
    shape: ModelShape, precision: Precision, name: str, context_tokens: int
) -> ReplicaDevice:
    """The fewest devices of a type that hold the weights and one whole context, and their model.

    InvalidRequest if the type's speed is not known, or eight of them are too few."""
    device = parse_device(name)
    speed = speeds.get(device.name)
    if speed is None:
        raise InvalidRequest(
            f"the speed of {name!r} is not known; take one of {', '.join(speeds)}", param="device"
        )
    weights = weight_bytes(shape, precision)
    kv_bytes = kv_bytes_of_sequence(shape, context_tokens, kv_bits) / context_tokens
    for devices in tensor_sizes:
        memory = devices * device.memory_bytes * device.usable_share
        kv_tokens = int((memory - weights) * kv_share / kv_bytes)
        if weights <= weights_share_max * memory and kv_tokens >= context_tokens:
            break
    else:
        raise InvalidRequest(
            f"{shape.name} as {precision.name} does not fit {tensor_sizes[-1]} x {device.name}",
            param="device",
        )
    bandwidth = speed.bytes_per_s * reached_bandwidth * devices
    hops_s = 2 * shape.layers * hop_s if devices > 1 else 0.0
    return ReplicaDevice(
        device.name,
        devices,
        DeviceModel(
            source=f"data sheet of {device.name}, {reached_compute:.0%} of its arithmetic and "
            f"{reached_bandwidth:.0%} of its bandwidth reached",
            fixed_s=step_overhead_s + hops_s,
            weights_s=weights / bandwidth,
            row_s=prompt_token_s(shape.active_parameters, speed, devices),
            sequence_s=5e-6,
            context_token_s=kv_bytes / bandwidth,
            pair_s=4
            * shape.layers
            * shape.heads
            * shape.head_dim
            / (speed.flops * reached_compute * devices),
            kv_tokens=kv_tokens,
            max_model_len=shape.context_max,
        ),
    )
