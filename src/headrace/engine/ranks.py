"""How a model is spread over ranks: processes of one machine that run its layers together.

    queries, keys, values   whole kv heads with their query heads
    gate, up                units of 32 outputs, a quantization group of the next matrix
    other matrices          tiles of 16 outputs
    norms, router, an encoder's positions   every rank has them whole
    LoRA adapters           A whole, of B the outputs that the rank has of the adapted matrix

A rank has whole rows of its outputs, so blocks of quantized rows are never cut, every number is
summed in one place, and the logits are those of a single rank, bit by bit (docs/decisions/0033).
csrc/model/weights.cpp cuts by the same rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.base.errors import ConfigurationError
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.lora.adapter import LoraAdapter
from headrace.weights.tensor import Tensor

ranks_max = 8  # no more than packed files are kept (weights/packed_cache.py)
tile_outputs = 16
group_outputs = 32
option = "--tensor-parallel-size"


class OtherRanks(Protocol):
    """The ranks beside the first, which tells them what comes between steps."""

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Let every one of them put an adapter into a slot; SetupError says why one could not."""
        ...

    def unload_adapter(self, slot: int) -> None:
        """Let them free a slot, before anything else is put there."""
        ...


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which of the ranks this process is, and the memory that they share."""

    rank: int = 0
    ranks: int = 1
    descriptor: int = -1  # of a file that all of them have open; a single rank needs none
    others: OtherRanks | None = None  # of the first, where there are any


alone = RankPlace()


def check_ranks(spec: ArchitectureSpec, ranks: int, cpu_moe_layers: int = 0) -> None:
    """ConfigurationError that says why a model does not run on so many ranks."""
    if ranks == 1:
        return
    if cpu_moe_layers:
        raise ConfigurationError(
            f"--n-cpu-moe does not go together with {option}, which shares every expert out; leave "
            "one of them out."
        )
    ffn_size = spec.expert_ffn_size if spec.expert_count else spec.ffn_size
    parts = {
        "key/value heads": spec.num_kv_heads,
        f"units of {group_outputs} feed-forward values": -(-ffn_size // group_outputs),
        f"tiles of {tile_outputs} hidden values": -(-spec.hidden_size // tile_outputs),
        f"tiles of {tile_outputs} tokens": -(-spec.vocab_size // tile_outputs),
    }
    if spec.shared_expert_ffn_size:
        units = -(-spec.shared_expert_ffn_size // group_outputs)
        parts[f"units of {group_outputs} values of the shared expert"] = units
    name, fewest = min(parts.items(), key=lambda part: part[1])
    if fewest < ranks:
        raise ConfigurationError(
            f"{option} is {ranks}, but this model has {fewest} {name}, and each rank needs at "
            f"least one; give at most {fewest}."
        )


def rows_of_rank(rank: int, ranks: int, count: int, unit: int) -> range:
    """A rank's share of `count` outputs that are only cut at multiples of `unit`."""
    units = -(-count // unit)
    first, end = (min(count, units * each // ranks * unit) for each in (rank, rank + 1))
    return range(first, end)


def rank_spec(spec: ArchitectureSpec, rank: int, ranks: int) -> ArchitectureSpec:
    """The model with the heads that one rank has."""
    kv_heads = len(rows_of_rank(rank, ranks, spec.num_kv_heads, 1))
    group = spec.num_heads // spec.num_kv_heads
    return replace(spec, num_kv_heads=kv_heads, num_heads=kv_heads * group)


def rank_tensors(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], rank: int, ranks: int
) -> dict[str, Tensor]:
    """Name, type and shape of what a rank holds of tensors that have the runner's names.

    For sizes only: the bytes are still the whole tensor's."""
    return {
        name: replace(tensor, shape=_shape_of_rank(spec, tensor, rank, ranks))
        for name, tensor in tensors.items()
    }


def _shape_of_rank(
    spec: ArchitectureSpec, tensor: Tensor, rank: int, ranks: int
) -> tuple[int, ...]:
    unit = unit_of(spec, tensor.name)
    if unit is None:
        return tensor.shape
    return (len(rows_of_rank(rank, ranks, tensor.shape[0], unit)), *tensor.shape[1:])


def unit_of(spec: ArchitectureSpec, tensor_name: str) -> int | None:
    """Where a tensor's outputs may be cut; None: it is not."""
    name = tensor_name.removesuffix(".weight").removesuffix(".bias")
    if name in ("token_embd", "output"):
        return tile_outputs
    matrix = name.split(".")[2] if name.startswith("blk.") else ""
    group = spec.num_heads // spec.num_kv_heads
    return {
        "attn_q": group * spec.head_dim,
        "attn_k": spec.head_dim,
        "attn_v": spec.head_dim,
        "attn_sinks": group,
        "attn_output": tile_outputs,
        "ffn_gate": group_outputs,
        "ffn_up": group_outputs,
        "ffn_down": tile_outputs,
    }.get(matrix.removesuffix("_shexp"))
