"""The memory plan that `run` and `serve` print before they load; what cannot fit is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import QuantizeTo
from headrace.cli.output import format_bytes, note
from headrace.engine.encoder import sequences_max
from headrace.engine.memory_plan import (
    MemoryPlan,
    RunnerSizes,
    kv_bytes_per_token,
    plan_memory,
    process_bytes,
    weights_bytes,
)
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
class Need:
    """What a model would take, and of what it is made."""

    spec: ArchitectureSpec
    tensors: dict[str, Tensor]  # under the runner's names
    sizes: RunnerSizes
    plan: MemoryPlan


def check_memory(
    config: EngineConfig, available_bytes: int | None = None, *, quiet: bool = False
) -> None:
    """Print the plan and how quantized weights are kept; ConfigurationError says what would fit.

    `quiet` prints nothing. Cost: the model's header is read."""
    available = read_memory().available_bytes if available_bytes is None else available_bytes
    with open_model(Path(config.model_path)) as file:
        lines = [*file.notes]
        need = _need(config, read_architecture(file), file.tensors)
        available -= _draft_bytes(config)
        lines.append(f"memory: {describe(need)}, of {format_bytes(available)} available")
        for line in [] if quiet else lines:
            note(line)
        if need.plan.total_bytes > available:
            raise ConfigurationError(
                f"This needs {describe(need)}, and {format_bytes(available)} of memory are "
                f"available. {'; or '.join(_would_fit(need, available)) or _nothing(need)}."
            )


def _draft_bytes(config: EngineConfig) -> int:
    """What the draft model takes beside the other; 0 if there is none."""
    if config.draft_model_path is None:
        return 0
    with open_model(Path(config.draft_model_path)) as file:
        need = _need(config, read_architecture(file), file.tensors)
    plan = need.plan
    taken = plan.weights_bytes + plan.kv_bytes + plan.workspace_bytes
    note(f"memory: {format_bytes(taken)} for the draft model")
    return taken


def plan_of(config: EngineConfig) -> Need:
    """What a model would take. Cost: its header is read."""
    with open_model(Path(config.model_path)) as file:
        return _need(config, read_architecture(file), file.tensors)


def describe(need: Need) -> str:
    """The plan in words."""
    plan = need.plan
    return (
        f"{format_bytes(plan.total_bytes)} (weights {format_bytes(plan.weights_bytes)}, "
        f"KV {format_bytes(plan.kv_bytes)} for {need.sizes.kv_tokens:,} tokens, "
        f"workspace {format_bytes(plan.workspace_bytes)}, Python {format_bytes(process_bytes)})"
    )


def _need(config: EngineConfig, spec: ArchitectureSpec, tensors: Mapping[str, Tensor]) -> Need:
    if config.context_length is not None:
        spec = replace(spec, context_length=min(config.context_length, spec.context_length))
    rows_max, kv_tokens = config.step_rows, config.kv_tokens
    if spec.encoder:  # holds one step's texts
        rows_max = spec.context_length
        kv_tokens = rows_max + sequences_max * block_size_tokens
    threads = default_thread_count() if config.threads is None else config.threads
    sizes = RunnerSizes(kv_tokens, rows_max, threads, config.kv_cache_dtype)
    named = runner_tensors(spec, tensors)
    return Need(spec, named, sizes, plan_memory(spec, named, sizes))


def _would_fit(need: Need, available: int) -> Iterator[str]:
    """Options under which it would fit, the one that changes least first."""
    plan, sizes = need.plan, need.sizes
    room = available - process_bytes - plan.workspace_bytes
    if need.spec.encoder:
        return
    for dtype, option in ((sizes.kv_cache_dtype, ""), ("q8", " with --kv-cache-dtype q8")):
        per_token = kv_bytes_per_token(need.spec, dtype)
        tokens = (room - plan.weights_bytes) // per_token // kv_tokens_min * kv_tokens_min
        if option and dtype == sizes.kv_cache_dtype:
            continue
        if tokens >= kv_tokens_min:
            yield f"--kv-tokens {min(tokens, sizes.kv_tokens)}{option} would fit"
    if any(t.type not in float_types for t in need.tensors.values() if len(t.shape) > 1):
        return
    for kind in QuantizeTo:
        weights = weights_bytes(need.tensors, TensorType[kind.name])
        if weights + plan.kv_bytes <= room:
            yield f"--quantize {kind.value} would fit, with {format_bytes(weights)} of weights"
            return


def _nothing(need: Need) -> str:
    least = process_bytes + need.plan.workspace_bytes + need.plan.weights_bytes
    return (
        f"The weights alone need {format_bytes(least)}; take a smaller model, a file of fewer "
        "bits, or a machine with more memory"
    )
