"""The memory plan that `run` and `serve` print before they load; what cannot fit is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import QuantizeTo
from headrace.cli.output import format_bytes, note
from headrace.engine.encoder import sequences_max
from headrace.engine.memory_plan import (
    MemoryPlan,
    RunnerSizes,
    adapters_bytes,
    kv_bytes_per_token,
    plan_devices,
    plan_memory,
    plan_ranks,
    sum_of,
    weights_bytes,
)
from headrace.engine.placement import Device, Placement, anywhere
from headrace.engine_server.devices import machine_devices, placement_of
from headrace.engine_server.messages import EngineConfig
from headrace.kernels import block_size_tokens, default_thread_count
from headrace.launchers.machine import read_memory
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import open_model
from headrace.weights.tensor import Tensor, TensorType

kv_tokens_min = 64
float_types = frozenset((TensorType.F32, TensorType.F16, TensorType.BF16))


@dataclass(frozen=True, slots=True)
class Part:
    """What of a model lies on one device, or in one rank."""

    name: str
    device: Device
    plan: MemoryPlan


@dataclass(frozen=True, slots=True)
class Need:
    """What a model would take, and of what it is made."""

    spec: ArchitectureSpec
    tensors: dict[str, Tensor]  # under the runner's names
    sizes: RunnerSizes
    plan: MemoryPlan
    parts: tuple[Part, ...] = ()  # of the plan, where there are several or it is bound to a node
    ranks: int = 1


def check_memory(
    config: EngineConfig,
    available_bytes: int | None = None,
    *,
    quiet: bool = False,
    nodes: tuple[Device, ...] | None = None,
) -> MemoryPlan:
    """The plan, printed; ConfigurationError says what would fit if it does not.

    How quantized weights are kept is said, too. `quiet` prints nothing. Cost: the model's header is
    read."""
    available = read_memory().available_bytes if available_bytes is None else available_bytes
    with open_model(Path(config.model_path)) as file:
        lines = [*file.notes]
        need = _need(config, read_architecture(file), file.tensors, nodes or machine_devices())
        available -= _draft_bytes(config)
        lines.append(f"memory: {describe(need)}, of {format_bytes(available)} available")
        lines += [_part_line(part) for part in need.parts]
        for line in [] if quiet else lines:
            note(line)
        if need.plan.total_bytes > available:
            options = list(_would_fit(need, len(config.adapters), available))
            raise ConfigurationError(
                f"This needs {describe(need)}, and {format_bytes(available)} of memory are "
                f"available. {'; or '.join(options) or _nothing(need)}."
            )
        check_devices(need)
        return need.plan


def check_devices(need: Need) -> None:
    """Refuse what one node's memory does not hold; ConfigurationError says what would fit."""
    taken: dict[Device, int] = {}
    for part in need.parts:
        taken[part.device] = taken.get(part.device, 0) + part.plan.total_bytes
    for device, byte_count in taken.items():
        if device.free_bytes is None or byte_count <= device.free_bytes:
            continue
        raise ConfigurationError(
            f"{device.name} has {format_bytes(device.free_bytes)} free, and what --device-map puts "
            f"there needs {format_bytes(byte_count)}. {_other_map(need, taken)}."
        )


def _other_map(need: Need, taken: dict[Device, int]) -> str:
    """A map of the same devices that would hold the model, or what else to do."""
    fewer = "Lower --kv-tokens, or leave --device-map out to use the memory of all nodes"
    if any(device.free_bytes is None for device in taken) or len(taken) < len(need.parts):
        return fewer
    layer_count = need.spec.num_layers
    layer_bytes = (need.plan.weights_bytes + need.plan.kv_bytes) / layer_count
    entries, first = [], 0
    for part in need.parts:  # workspace and Python stay where they are; layers are alike
        plan = part.plan
        fixed = plan.total_bytes - plan.weights_bytes - plan.kv_bytes
        free = (part.device.free_bytes or 0) - fixed
        end = min(layer_count, first + max(0, int(free / layer_bytes)))
        if end > first:
            entries.append(f"{first}-{end - 1}={part.device.name}")
        first = end
    return f"--device-map {','.join(entries)} would fit" if first == layer_count else fewer


def _part_line(part: Part) -> str:
    plan = part.plan
    free = part.device.free_bytes
    of_free = "" if free is None else f", of {format_bytes(free)} free"
    return (
        f"memory: {part.name}: {format_bytes(plan.total_bytes)} "
        f"(weights {format_bytes(plan.weights_bytes)}, KV {format_bytes(plan.kv_bytes)}, "
        f"workspace {format_bytes(plan.workspace_bytes)}){of_free}"
    )


def _draft_bytes(config: EngineConfig) -> int:
    """What the draft model takes beside the other; 0 if there is none."""
    if config.draft_model_path is None:
        return 0
    with open_model(Path(config.draft_model_path)) as file:
        bare = msgspec.structs.replace(
            config,
            adapters_max=0,
            host_tokens=0,
            tensor_parallel=1,
            device_map=None,
            cpu_moe_layers=0,
        )
        need = _need(bare, read_architecture(file), file.tensors, ())
    note(f"memory: {format_bytes(need.plan.model_bytes)} for the draft model")
    return need.plan.model_bytes


def plan_of(config: EngineConfig) -> Need:
    """What a model would take. Cost: its header is read."""
    with open_model(Path(config.model_path)) as file:
        return _need(config, read_architecture(file), file.tensors, machine_devices())


def describe(need: Need) -> str:
    """The plan in words."""
    plan, sizes = need.plan, need.sizes
    parts = [
        f"weights {format_bytes(plan.weights_bytes)}",
        f"KV {format_bytes(plan.kv_bytes)} for {sizes.kv_tokens:,} tokens",
        f"workspace {format_bytes(plan.workspace_bytes)}",
    ]
    if plan.adapters_bytes:
        size = format_bytes(plan.adapters_bytes)
        parts.append(f"adapters {size} for {sizes.adapters_max} of rank {sizes.adapter_rank_max}")
    if plan.host_kv_bytes:
        size = format_bytes(plan.host_kv_bytes)
        parts.append(f"swapped KV {size} for {sizes.host_tokens:,} tokens")
    parts.append(f"Python {format_bytes(plan.python_bytes)}")
    return f"{format_bytes(plan.total_bytes)} ({', '.join(parts)})"


def _need(
    config: EngineConfig,
    spec: ArchitectureSpec,
    tensors: Mapping[str, Tensor],
    nodes: tuple[Device, ...],
) -> Need:
    if config.context_length is not None:
        spec = replace(spec, context_length=min(config.context_length, spec.context_length))
    rows_max, kv_tokens = config.step_rows, config.kv_tokens
    if spec.encoder:  # holds one step's texts
        rows_max = spec.context_length
        kv_tokens = rows_max + sequences_max * block_size_tokens
    placement = placement_of(config, spec, nodes)
    threads = default_thread_count() if config.threads is None else config.threads
    threads = max(1, threads // config.tensor_parallel)
    sizes = RunnerSizes(
        kv_tokens,
        rows_max,
        threads,
        config.kv_cache_dtype,
        config.adapters_max,
        config.adapter_rank_max,
        0 if spec.encoder else config.host_tokens,
        config.activation_bits,
    )
    named = runner_tensors(spec, tensors)
    parts = _parts(config, placement, named, sizes)
    plan = sum_of([part.plan for part in parts]) if parts else plan_memory(spec, named, sizes)
    return Need(placement.spec, named, sizes, plan, parts, config.tensor_parallel)


def _parts(
    config: EngineConfig, placement: Placement, tensors: dict[str, Tensor], sizes: RunnerSizes
) -> tuple[Part, ...]:
    devices, ranks = placement.devices, config.tensor_parallel
    if ranks > 1:
        plans = plan_ranks(placement.spec, tensors, sizes, ranks)
        names = [f"rank {rank} on {device.name}" for rank, device in enumerate(devices)]
    elif devices == (anywhere,):
        return ()
    else:
        plans = plan_devices(placement.spec, tensors, sizes, len(devices))
        names = [device.name for device in devices]
    return tuple(Part(*fields) for fields in zip(names, devices, plans, strict=True))


def _would_fit(need: Need, given_adapters: int, available: int) -> Iterator[str]:
    """Options under which it would fit, the one that changes least first."""
    plan, sizes = need.plan, need.sizes
    if need.spec.encoder:
        return
    over = plan.total_bytes - available
    token_bytes = kv_bytes_per_token(need.spec, sizes.kv_cache_dtype)
    if over <= plan.host_kv_bytes:
        yield f"--swap-tokens {sizes.host_tokens - -(-over // token_bytes)} would fit"
    fewer = _fewer_adapters(need, over)
    if fewer is not None and fewer >= given_adapters:
        yield f"--max-loras {fewer} would fit"
    room = available - plan.python_bytes - plan.workspace_bytes - plan.adapters_bytes
    yield from _smaller_cache(need, room - plan.weights_bytes)
    if any(t.type not in float_types for t in need.tensors.values() if len(t.shape) > 1):
        return
    for kind in QuantizeTo:
        weights = weights_bytes(need.tensors, TensorType[kind.name])
        if weights + plan.kv_bytes + plan.host_kv_bytes <= room:
            yield f"--quantize {kind.value} would fit, with {format_bytes(weights)} of weights"
            return


def _fewer_adapters(need: Need, over: int) -> int | None:
    """How many adapter slots would fit with all else as it is; None where none does."""
    for count in range(need.sizes.adapters_max - 1, -1, -1):
        sizes = replace(need.sizes, adapters_max=count)
        each = (adapters_bytes(need.spec, sizes, rank, need.ranks) for rank in range(need.ranks))
        taken = sum(each)
        if need.plan.adapters_bytes - taken >= over:
            return count
    return None


def _smaller_cache(need: Need, room: int) -> Iterator[str]:
    """The KV that fits into `room` bytes, as it is and in int8."""
    sizes = need.sizes
    swaps = sizes.host_tokens > 0
    for dtype in dict.fromkeys((sizes.kv_cache_dtype, "q8")):
        fit = room // kv_bytes_per_token(need.spec, dtype)
        tokens = min(fit // kv_tokens_min * kv_tokens_min, sizes.kv_tokens)
        if tokens < kv_tokens_min:
            continue
        options = [f"--swap-tokens {min(sizes.host_tokens, fit - tokens)}"] if swaps else []
        if dtype != sizes.kv_cache_dtype:
            options.append(f"--kv-cache-dtype {dtype}")
        beside = f" with {' and '.join(options)}" if options else ""
        yield f"--kv-tokens {tokens}{beside} would fit"


def _nothing(need: Need) -> str:
    plan = need.plan
    least = plan.total_bytes - plan.kv_bytes - plan.host_kv_bytes
    what = "weights and the adapters" if plan.adapters_bytes else "weights"
    return (
        f"The {what} alone need {format_bytes(least)}; take a smaller model, a file of fewer "
        "bits, or a machine with more memory"
    )
