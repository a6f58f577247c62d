"""What a step's rows, its logits and its threads take beside weights and KV.

    rows      hidden state, queries with keys and values, attention's output; inputs of each product
              in the forms that its weights want (csrc/model/activations.hpp); experts' slots
    logits    of 32 sampled rows
    rotations cosines and sines of every position
    threads   scores, units, and what the sampler looks at

As if every row of the largest step were used, and every thread sampled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.engine.packed_sizes import (
    buffer_bytes,
    group_values,
    nibble_types,
    tile_columns,
    tile_shapes,
)
from headrace.kernels import has_fours
from headrace.weights.architecture import ArchitectureSpec, NormPlacement
from headrace.weights.tensor import Tensor, TensorType

group_scale_bytes = 28  # GroupScale in csrc/kernels/kernel_table.hpp
scaled_fours_bytes = 64  # ScaledFours there
sampled_rows = 32  # whose logits are held at once
candidate_bytes = 24  # of a token that may be sampled
thread_rows_bytes = 1 << 18  # of attention and of feed-forward units
partial_results = 256  # of split attention, for each query head of a group
partial_bytes = 8 + 256 * 4


@dataclass(frozen=True, slots=True)
class InputForms:
    """How the inputs of some products are kept: as their weights want them."""

    integers: bool = False  # of 16 bits
    bytes: bool = False
    fours: bool = False
    floats: bool = False

    def row_bytes(self, inputs: int) -> Iterator[int]:
        """Bytes of a row of each array."""
        scales = inputs // group_values * group_scale_bytes
        if self.integers:
            yield from (inputs * 2, scales)
        if self.bytes:
            yield from (inputs, scales)
        if self.fours:
            yield inputs // group_values * scaled_fours_bytes
        if self.floats:
            yield -(-inputs // group_values) * group_values * 4


def input_forms(
    kinds: Iterable[TensorType], activation_bits: int, *, floats: bool = False
) -> InputForms:
    """What weights of these types want of this machine's kernels."""
    quantized = {kind for kind in kinds if kind in tile_shapes}
    bytewise = {kind for kind in quantized if activation_bits == 8 and kind in nibble_types}
    others = bool(quantized - bytewise)
    fours = others and has_fours(activation_bits)
    return InputForms(
        integers=others and not fours,
        bytes=bool(bytewise),
        fours=fours,
        floats=floats or any(kind not in tile_shapes for kind in kinds),
    )


def workspace_bytes(
    spec: ArchitectureSpec,
    tensors: Iterable[Tensor],
    *,
    rows_max: int,
    threads: int,
    kv_tokens: int,
    activation_bits: int,
) -> int:
    """The workspace of a model whose tensors have the runner's names."""
    rows = sum(
        buffer_bytes(rows_max * row)
        for row in _row_arrays(spec, _by_stem(tensors), activation_bits)
    )
    group = spec.num_heads // spec.num_kv_heads
    attention = buffer_bytes(partial_results * group * partial_bytes)
    logits = 0 if spec.encoder else buffer_bytes(4 * sampled_rows * _tiles(spec.vocab_size))
    context = min(spec.context_length, kv_tokens)
    tables = 2 * (1 + bool(spec.local_rope_theta)) if spec.rope_dimensions else 0
    rotations = tables * buffer_bytes(context * spec.rope_dimensions // 2 * 4)
    thread = spec.vocab_size * (8 + candidate_bytes) + thread_rows_bytes
    return rows + attention + logits + rotations + threads * thread


def _row_arrays(
    spec: ArchitectureSpec, kinds: dict[str, set[TensorType]], activation_bits: int
) -> Iterator[int]:
    """Bytes of a row of each array that has a row for each of a step's."""

    def inputs(width: int, *stems: str, floats: bool = False) -> Iterator[int]:
        found = set[TensorType]().union(*(kinds.get(stem, set()) for stem in stems))
        return input_forms(found, activation_bits, floats=floats).row_bytes(width)

    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
    yield 4 * _tiles(hidden)
    if spec.norm_placement is not NormPlacement.BEFORE or spec.residual_scale != 1:
        yield 4 * _tiles(hidden)  # a branch that is not added directly
    yield 4 * (queries + 2 * spec.num_kv_heads * spec.head_dim)
    yield 4 * queries
    yield from inputs(hidden, "attn_q", "attn_k", "attn_v")
    yield from inputs(queries, "attn_output")
    shared = ("ffn_gate_inp", "ffn_gate_shexp", "ffn_up_shexp")
    experts = bool(spec.expert_count)
    yield from inputs(hidden, *(shared if experts else ("ffn_gate", "ffn_up")), floats=experts)
    yield from inputs(spec.ffn_size, *(() if experts else ("ffn_down",)))
    if not experts:
        return
    slots = [
        *inputs(hidden, "ffn_gate", "ffn_up"),
        *inputs(spec.expert_ffn_size, "ffn_down"),
        4 * _tiles(hidden),
    ]
    yield from (spec.experts_used * slot for slot in slots)
    yield 4 * _tiles(spec.expert_count)
    if spec.shared_expert_ffn_size:
        yield from inputs(spec.shared_expert_ffn_size, "ffn_down_shexp")
        yield 4 * _tiles(hidden)


def _by_stem(tensors: Iterable[Tensor]) -> dict[str, set[TensorType]]:
    """The types of all layers' matrices by their names, experts' without their numbers."""
    found: dict[str, set[TensorType]] = {}
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            found.setdefault(tensor.name.split(".")[2], set()).add(tensor.type)
    return found


def _tiles(count: int) -> int:
    return -(-count // tile_columns) * tile_columns
