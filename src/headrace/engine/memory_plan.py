"""How much memory a model takes on this CPU, by arithmetic, before a byte of it is loaded.

    weights     tiles of 16 outputs (csrc/kernels/tile_layout.hpp), norms and biases
    KV          every block, as if all were full
    workspace   a step's rows on their way through a layer, logits, rotations, threads' scratch
    adapters    every slot, as if it had the highest rank at every matrix, in F32
    swapped KV  of preempted requests in host memory, as if it were full

What is written here, in packed_sizes.py and in workspace.py is what the runner allocates; a test
compares both. Python and its libraries take `process_bytes` besides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.engine.packed_sizes import buffer_bytes, group_values, tile_columns, tiles_bytes
from headrace.engine.ranks import rank_spec, rank_tensors, rows_of_rank, unit_of
from headrace.engine.workspace import workspace_bytes
from headrace.kernels import block_size_tokens
from headrace.weights.architecture import ArchitectureSpec, QueryKeyNorm
from headrace.weights.layout import divisor_names
from headrace.weights.lora.adapter import rank_max_default, target_shapes
from headrace.weights.tensor import Tensor, TensorType

process_bytes = 120 << 20
adapter_targets_max = 3  # that have one input: Q, K and V


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
    activation_bits: int = 16


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
        workspace_bytes=_workspace_bytes(spec, tensors, sizes),
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
            workspace_bytes=0 if device else _workspace_bytes(spec, tensors, sizes),
            adapters_bytes=0 if device else adapters_bytes(spec, sizes),
            host_kv_bytes=0 if device else sizes.host_tokens * token_bytes * spec.num_layers,
            process_count=0 if device else 1,
        )
        for device in range(device_count)
    ]


def plan_ranks(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], sizes: RunnerSizes, ranks: int
) -> list[MemoryPlan]:
    """What each rank's process takes; the rows that ranks share are counted with each.

    Swapped KV is whole, and the first rank's."""
    plans = []
    for rank in range(ranks):
        part, held = rank_spec(spec, rank, ranks), rank_tensors(spec, tensors, rank, ranks)
        plan = plan_memory(part, held, sizes)
        host_tokens = 0 if rank else sizes.host_tokens
        plans.append(
            replace(
                plan,
                workspace_bytes=plan.workspace_bytes + (0 if rank else _shared_bytes(spec, sizes)),
                adapters_bytes=adapters_bytes(spec, sizes, rank, ranks),
                host_kv_bytes=host_tokens * kv_bytes_per_token(spec, sizes.kv_cache_dtype),
            )
        )
    return plans


def _shared_bytes(spec: ArchitectureSpec, sizes: RunnerSizes) -> int:
    """What ranks share that a single one has not: a block of KV on its way, gathered heads."""
    block = block_size_tokens * kv_bytes_per_token(spec, sizes.kv_cache_dtype)
    if spec.query_key_norm is not QueryKeyNorm.WHOLE:
        return block
    return block + sizes.rows_max * 4 * (spec.num_heads + spec.num_kv_heads) * spec.head_dim


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
        total += buffer_bytes(tiles_bytes(kind, *tensor.shape))
    return total


def adapters_bytes(
    spec: ArchitectureSpec, sizes: RunnerSizes, rank: int = 0, ranks: int = 1
) -> int:
    """Bytes of every adapter slot of a rank, and of a step's rows on their way through adapters."""
    if not sizes.adapters_max:
        return 0
    low, kind = sizes.adapter_rank_max, TensorType.F32
    vocabulary, hidden = spec.vocab_size, spec.hidden_size
    shapes = [(vocabulary, low), (hidden, low)]  # of the embedding, which every rank has whole
    layer = {f"blk.0.{target}": shape for target, shape in target_shapes(spec).items()}
    for name, (outputs, inputs), count in (
        *((name, shape, spec.num_layers) for name, shape in layer.items()),
        ("output", (vocabulary, hidden), 1),
    ):
        own = len(rows_of_rank(rank, ranks, outputs, unit_of(spec, name) or outputs))
        shapes += [(low, inputs), (own, low)] * count
    slot = sum(buffer_bytes(tiles_bytes(kind, outputs, inputs)) for outputs, inputs in shapes)
    queries = spec.num_heads * spec.head_dim
    places = adapter_targets_max * -(-low // tile_columns) * tile_columns
    row = 4 * (places + 2 * hidden + queries + spec.ffn_size)
    return sizes.adapters_max * slot + sizes.rows_max * row


def kv_bytes_per_token(spec: ArchitectureSpec, kv_cache_dtype: str) -> int:
    """Bytes that one token takes in the KV cache."""
    head_bytes = spec.head_dim * 4 if kv_cache_dtype == "f16" else spec.head_dim * 2 + 8
    return spec.num_layers * spec.num_kv_heads * head_bytes


def _workspace_bytes(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], sizes: RunnerSizes
) -> int:
    return workspace_bytes(
        spec,
        tensors.values(),
        rows_max=sizes.rows_max,
        threads=sizes.threads,
        kv_tokens=sizes.kv_tokens,
        activation_bits=sizes.activation_bits,
    )
