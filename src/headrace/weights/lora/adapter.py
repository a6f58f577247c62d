"""What an adapter is once it is read: for each matrix that it changes, A, B and a scale.

`y += scale * B (A x)`. Whatever a file fuses is cut as the model's own matrices are (layout.py). Of
the embedding A has a row for each token, which is what a token's row of the embedding gets times B.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

from headrace.base.errors import ModelFileError
from headrace.kernels.architecture import ArchitectureSpec
from headrace.weights.tensor import Tensor, TensorType, block_layouts

# What the runner can adapt; their order is that of AdapterTarget in csrc/model/adapter.hpp.
layer_targets = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
model_targets = ("token_embd", "output")
targets = (*layer_targets, *model_targets)
no_layer = -1  # of a matrix that the model has once
float_types = (TensorType.F32, TensorType.F16, TensorType.BF16)
name_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
rank_max_default = 64
digest_chunk_bytes = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """One matrix, of a layer or of the model, and what is added to its product."""

    layer: int  # or `no_layer`
    target: str  # one of `targets`
    scale: float
    down: Tensor  # A: (rank, inputs); of the embedding (tokens, rank)
    up: Tensor  # B: (outputs, rank)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A whole adapter, checked against the model that it is for."""

    path: Path
    digest: str  # SHA-256 of its content: its version wherever that must be told apart
    parts: tuple[AdapterPart, ...]

    @property
    def rank(self) -> int:
        """The highest of its parts."""
        return max(part.up.shape[1] for part in self.parts)

    @property
    def byte_count(self) -> int:
        """Of its matrices."""
        return sum(len(part.down.data) + len(part.up.data) for part in self.parts)


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """A and B as a file names them: of a matrix that may be several of ours."""

    name: str  # for messages
    layer: int  # or `no_layer`
    matrix: str  # the GGUF name of what it changes: "attn_q", "attn_qkv", "output", ...
    scale: float
    down: Tensor
    up: Tensor


def target_shapes(spec: ArchitectureSpec) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each matrix of a layer that an adapter of this model may change."""
    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    shapes = {
        "attn_q": (queries, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, queries),
    }
    if spec.expert_count:
        return shapes
    if spec.gated:
        shapes["ffn_gate"] = (spec.ffn_size, hidden)
    return shapes | {"ffn_up": (spec.ffn_size, hidden), "ffn_down": (hidden, spec.ffn_size)}


def model_target_shapes(spec: ArchitectureSpec) -> dict[str, tuple[int, int]]:
    """The same of the matrices that the model has once."""
    return {
        "token_embd": (spec.hidden_size, spec.vocab_size),
        "output": (spec.vocab_size, spec.hidden_size),
    }


def cut(spec: ArchitectureSpec, pair: LowRankPair, path: Path) -> Iterator[AdapterPart]:
    """The parts of one pair; ModelFileError if they do not fit the model."""
    if pair.down.type not in float_types or pair.up.type not in float_types:
        fail(path, pair.name, "is neither F32, F16 nor BF16")
    if len(pair.down.shape) != 2 or len(pair.up.shape) != 2:
        fail(path, pair.name, "is no pair of matrices")
    if pair.layer != no_layer and not 0 <= pair.layer < spec.num_layers:
        fail(path, pair.name, f"is of layer {pair.layer}; the model has {spec.num_layers}")
    rank, inputs = pair.down.shape
    if pair.matrix == "token_embd":
        rank, inputs = inputs, rank
    sizes, wanted_inputs = _sizes(spec, pair, path)
    wanted = (sum(sizes.values()), wanted_inputs)
    if (pair.up.shape[0], inputs) != wanted or pair.up.shape[1] != rank:
        fail(
            path,
            pair.name,
            f"is {pair.up.shape} times {pair.down.shape}, and the model's matrix {wanted}: the "
            "adapter is for another model",
        )
    first = 0
    for target, size in sizes.items():
        yield AdapterPart(
            pair.layer, target, pair.scale, pair.down, _rows(pair.up, first, first + size)
        )
        first += size


def adapter_of(path: Path, digest: str, parts: list[AdapterPart], rank_max: int) -> LoraAdapter:
    """The adapter of these parts; ModelFileError if there are none, or one's rank is too high."""
    if not parts:
        raise ModelFileError(f"{path}: the adapter changes no matrix.", file=str(path))
    adapter = LoraAdapter(path, digest, tuple(parts))
    if adapter.rank > rank_max:
        raise ModelFileError(
            f"{path}: the adapter's rank is {adapter.rank}, and this server takes {rank_max}; "
            "raise --max-lora-rank.",
            file=str(path),
        )
    return adapter


def digest_of(*files: Path) -> str:
    """One SHA-256 of the files' content, each with its length before it."""
    digest = hashlib.sha256(b"headrace lora adapter\0")
    for path in files:
        try:
            digest.update(path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as file:
                while chunk := file.read(digest_chunk_bytes):
                    digest.update(chunk)
        except OSError as error:
            raise ModelFileError(
                f"{path}: cannot be read ({error.strerror}); check the path.", file=str(path)
            ) from error
    return digest.hexdigest()


def fail(path: Path, field: str, problem: str) -> NoReturn:
    """Refuse an adapter by what is wrong with it."""
    raise ModelFileError(f"{path}: {field}: {problem}.", file=str(path), field=field)


def _sizes(spec: ArchitectureSpec, pair: LowRankPair, path: Path) -> tuple[dict[str, int], int]:
    """The outputs of each target in the matrix, in their order, and its inputs."""
    hidden = spec.hidden_size
    if pair.layer == no_layer:
        outputs, inputs = model_target_shapes(spec)[pair.matrix]
        return {pair.matrix: outputs}, inputs
    shapes = target_shapes(spec)
    known: dict[str, tuple[dict[str, int], int]] = {
        name: ({name: outputs}, inputs) for name, (outputs, inputs) in shapes.items()
    }
    fused = {name: shapes[name][0] for name in ("attn_q", "attn_k", "attn_v")}
    known["attn_qkv"] = (fused, hidden)
    if not spec.expert_count:
        dense: dict[str, int] = {
            name: shapes[name][0] for name in ("ffn_gate", "ffn_up") if name in shapes
        }
        if spec.gated and pair.up.shape[0] == 2 * spec.ffn_size:
            known["ffn_up"] = (dense, hidden)
    elif pair.matrix not in known:
        fail(path, pair.name, "changes a model's experts, which are not adapted here; attention is")
    if pair.matrix not in known:
        fail(path, pair.name, f"changes {pair.matrix}; adapters of {', '.join(known)} are served")
    return known[pair.matrix]


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    layout = block_layouts[tensor.type]
    row_bytes = prod(tensor.shape[1:]) // layout.values * layout.bytes
    return Tensor(
        tensor.name,
        tensor.type,
        (end - first, *tensor.shape[1:]),
        tensor.data[first * row_bytes : end * row_bytes],
    )
