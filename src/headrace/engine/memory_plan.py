"""How much memory a model takes on this CPU, by arithmetic, before a byte of it is loaded.

    weights     tiles of 16 outputs (csrc/kernels/tile_layout.hpp), norms and biases
    KV          every block, as if all were full
    workspace   a step's rows on their way through a layer, logits, rotations, threads' scratch
    adapters    every slot, as if it had the highest rank at every matrix, in F32
    swapped KV  of preempted requests in host memory, as if it were full

What is written here is what the runner allocates; a test compares both. Python and its libraries
take `process_bytes` besides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.engine.ranks import rank_spec, rank_tensors
from headrace.weights.architecture import ArchitectureSpec, NormPlacement
from headrace.weights.layout import divisor_names
from headrace.weights.lora.adapter import rank_max_default, target_shapes
from headrace.weights.tensor import Tensor, TensorType, bytes_of

process_bytes = 120 << 20
tile_columns = 16
group_values = 32
coded_groups = 8  # groups that share their factors
line_bytes = 64
huge_page_bytes = 2 << 20
sampled_rows = 32  # whose logits are held at once
candidate_bytes = 24  # of a token that may be sampled
thread_rows_bytes = 1 << 18  # of attention and of feed-forward units
adapter_targets_max = 3  # that have one input: Q, K and V


class TileShape(NamedTuple):
    """How a tile keeps a group of 32 inputs of its 16 outputs."""

    quant_bytes: int
    scale_bytes: int
    factor_bytes: int = 0  # of eight groups whose scales are codes


_nibbles_with_scales = TileShape(256, 32)
_bytes_with_scales = TileShape(512, 32)
_bytes_with_floats = TileShape(512, 128)
_nibbles_with_floats = TileShape(256, 256)
tile_shapes: Mapping[TensorType, TileShape] = {
    TensorType.Q4_0: _nibbles_with_scales,
    TensorType.Q4_1: TileShape(256, 64),
    TensorType.Q5_0: _bytes_with_scales,
    TensorType.Q5_1: _bytes_with_floats,
    TensorType.Q8_0: _bytes_with_scales,
    TensorType.Q2_K: _nibbles_with_floats,
    TensorType.Q3_K: _nibbles_with_floats,
    TensorType.Q4_K: TileShape(256, 32, 64),
    TensorType.Q5_K: TileShape(512, 32, 64),
    TensorType.Q6_K: TileShape(512, 32, 32),
    TensorType.IQ4_NL: _bytes_with_scales,
    TensorType.IQ4_XS: _bytes_with_floats,
    TensorType.MXFP4: _bytes_with_floats,
}


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """What is chosen about a runner."""

    kv_tokens: int
    rows_max: int
    threads: int
    kv_cache_dtype: str = "f16"
    adapters_max: int = 0
    adapter_rank_max: int = rank_max_default
    host_tokens: int = 0  # of preempted requests


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of an engine's processes, or of what lies on one of its devices."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    adapters_bytes: int = 0
    host_kv_bytes: int = 0
    process_count: int = 1  # of those that have their Python here

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for."""
        return {
            "weights": self.weights_bytes,
            "kv": self.kv_bytes,
            "workspace": self.workspace_bytes,
            "adapters": self.adapters_bytes,
            "swapped_kv": self.host_kv_bytes,
        }

    @property
    def model_bytes(self) -> int:
        """All of it but Python."""
        return sum(self.parts.values())

    @property
    def python_bytes(self) -> int:
        """What Python and its libraries take."""
        return self.process_count * process_bytes

    @property
    def total_bytes(self) -> int:
        """All of it, Python included."""
        return self.model_bytes + self.python_bytes


def plan_memory(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], sizes: RunnerSizes
) -> MemoryPlan:
    """The plan of a model whose tensors have the runner's names."""
    token_bytes = kv_bytes_per_token(spec, sizes.kv_cache_dtype)
    return MemoryPlan(
        weights_bytes=weights_bytes(tensors),
        kv_bytes=sizes.kv_tokens * token_bytes,
        workspace_bytes=_workspace_bytes(spec, sizes),
        adapters_bytes=adapters_bytes(spec, sizes),
        host_kv_bytes=sizes.host_tokens * token_bytes,
    )


def plan_devices(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], sizes: RunnerSizes, device_count: int
) -> list[MemoryPlan]:
    """What lies on each device of a placed model; what belongs to no layer is on the first."""
    held: list[dict[str, Tensor]] = [{} for _ in range(device_count)]
    for tensor in tensors.values():
        held[_device_of(spec, tensor.name)][tensor.name] = tensor
    token_bytes = kv_bytes_per_token(spec, sizes.kv_cache_dtype) // spec.num_layers
    places = [spec.layer(index).device for index in range(spec.num_layers)]
    return [
        MemoryPlan(
            weights_bytes=weights_bytes(held[device]),
            kv_bytes=sizes.kv_tokens * token_bytes * places.count(device),
            workspace_bytes=0 if device else _workspace_bytes(spec, sizes),
            adapters_bytes=0 if device else adapters_bytes(spec, sizes),
            host_kv_bytes=0 if device else sizes.host_tokens * token_bytes * spec.num_layers,
            process_count=0 if device else 1,
        )
        for device in range(device_count)
    ]


def plan_ranks(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], sizes: RunnerSizes, ranks: int
) -> list[MemoryPlan]:
    """What each rank's process takes; the rows that ranks share are counted with each."""
    return [
        plan_memory(rank_spec(spec, rank, ranks), rank_tensors(spec, tensors, rank, ranks), sizes)
        for rank in range(ranks)
    ]


def sum_of(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """All of them together."""
    return MemoryPlan(
        weights_bytes=sum(plan.weights_bytes for plan in plans),
        kv_bytes=sum(plan.kv_bytes for plan in plans),
        workspace_bytes=sum(plan.workspace_bytes for plan in plans),
        adapters_bytes=sum(plan.adapters_bytes for plan in plans),
        host_kv_bytes=sum(plan.host_kv_bytes for plan in plans),
        process_count=sum(plan.process_count for plan in plans),
    )


def _device_of(spec: ArchitectureSpec, tensor_name: str) -> int:
    last = spec.layer(spec.num_layers - 1)
    end = last.experts_device if spec.expert_count else last.device
    if not tensor_name.startswith("blk."):
        ends = tensor_name.startswith("output") or spec.tied_output
        return end if ends else spec.layer(0).device
    _, index, name, *_ = tensor_name.split(".")
    layer = spec.layer(int(index))
    experts = spec.expert_count and name.startswith("ffn_") and name != "ffn_norm"
    return layer.experts_device if experts else layer.device


def weights_bytes(tensors: Mapping[str, Tensor], matrices: TensorType | None = None) -> int:
    """Bytes of the weights in tiles; with `matrices` if the quantizer gave them that type."""
    total = 0
    for tensor in tensors.values():
        if tensor.name in divisor_names:
            continue
        if len(tensor.shape) == 1:
            total += tensor.value_count * 4
            continue
        kind = tensor.type
        if matrices is not None and tensor.shape[-1] % group_values == 0:
            kind = matrices
        total += _buffer_bytes(tiles_bytes(kind, *tensor.shape))
    return total


def adapters_bytes(spec: ArchitectureSpec, sizes: RunnerSizes) -> int:
    """Bytes of every adapter slot, and of a step's rows on their way through adapters."""
    if not sizes.adapters_max:
        return 0
    rank, kind = sizes.adapter_rank_max, TensorType.F32
    layer = [
        shape
        for outputs, inputs in target_shapes(spec).values()
        for shape in ((rank, inputs), (outputs, rank))
    ]
    vocabulary, hidden = spec.vocab_size, spec.hidden_size
    ends = [(vocabulary, rank), (hidden, rank), (rank, hidden), (vocabulary, rank)]
    shapes = layer * spec.num_layers + ends
    slot = sum(_buffer_bytes(tiles_bytes(kind, outputs, inputs)) for outputs, inputs in shapes)
    queries = spec.num_heads * spec.head_dim
    low_rank = adapter_targets_max * -(-rank // tile_columns) * tile_columns
    row = 4 * (low_rank + 2 * spec.hidden_size + queries + spec.ffn_size)
    return sizes.adapters_max * slot + sizes.rows_max * row


def tiles_bytes(kind: TensorType, outputs: int, inputs: int) -> int:
    """Bytes of a matrix as the runner keeps it."""
    tiles = -(-outputs // tile_columns)
    if kind not in tile_shapes:
        return tiles * _lines(bytes_of(kind, inputs) * tile_columns)
    shape = tile_shapes[kind]
    groups = inputs // group_values
    scales = groups * shape.scale_bytes
    if shape.factor_bytes:
        scales += (groups // coded_groups + 1) * shape.factor_bytes
    return tiles * _lines(_lines(scales) + groups * shape.quant_bytes)


def kv_bytes_per_token(spec: ArchitectureSpec, kv_cache_dtype: str) -> int:
    """Bytes that one token takes in the KV cache."""
    head_bytes = spec.head_dim * 4 if kv_cache_dtype == "f16" else spec.head_dim * 2 + 8
    return spec.num_layers * spec.num_kv_heads * head_bytes


def _workspace_bytes(spec: ArchitectureSpec, sizes: RunnerSizes) -> int:
    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
    branches = 1 if spec.norm_placement is NormPlacement.BEFORE else 2
    row = 4 * (hidden * branches + 2 * queries + 2 * spec.num_kv_heads * spec.head_dim)
    row += _input_bytes(hidden) * 2 + _input_bytes(queries) + _input_bytes(spec.ffn_size)
    if spec.expert_count:
        slot = _input_bytes(hidden) + _input_bytes(spec.expert_ffn_size) + 4 * hidden
        row += spec.experts_used * slot + 4 * hidden
        row += _input_bytes(spec.shared_expert_ffn_size) + 4 * hidden
    logits = 0 if spec.encoder else 4 * sampled_rows * spec.vocab_size
    context = min(spec.context_length, sizes.kv_tokens)
    rotations = 1 + bool(spec.local_rope_theta)
    tables = 0 if spec.encoder else context * spec.rope_dimensions * 4 * rotations
    thread = spec.vocab_size * (8 + candidate_bytes) + thread_rows_bytes
    return sizes.rows_max * row + logits + tables + sizes.threads * thread


def _input_bytes(inputs: int) -> int:
    """A row of inputs as 16-bit integers with two numbers for each group."""
    return inputs * 2 + inputs // group_values * 8


def _buffer_bytes(byte_count: int) -> int:
    """What an array takes: large ones are made of huge pages (csrc/base/buffer.hpp)."""
    if byte_count < huge_page_bytes:
        return byte_count
    return -(-byte_count // huge_page_bytes) * huge_page_bytes


def _lines(byte_count: int) -> int:
    return -(-byte_count // line_bytes) * line_bytes
