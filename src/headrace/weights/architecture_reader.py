"""From a GGUF file to its architecture spec: every value in range, every tensor of its shape.

A file that passes can be computed as it says; what would be computed wrongly is refused by name.
"""

import math
from collections.abc import Mapping
from typing import NoReturn

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import ArchitectureSpec, RopeStyle
from headrace.weights.gguf import GgufFile
from headrace.weights.tensor import Tensor

supported_families = ("llama",)
layers_max = 1_024
width_max = 1 << 22  # hidden, ffn and vocabulary sizes
heads_max = 4_096
head_dim_max = 1_024
context_length_max = 1 << 27
rope_scalings = ("none", "linear")
# Keys that change what a llama file computes in ways that no runner of ours follows yet.
unsupported_counts = ("expert_count", "attention.sliding_window")


def read_architecture(file: GgufFile) -> ArchitectureSpec:
    """Read and check a model's architecture; ModelFileError names what is wrong or unsupported."""
    header = _Header(file)
    family = header.text("general.architecture")
    if family not in supported_families:
        header.fail(
            "general.architecture",
            f"the family {family!r} is not supported; headrace computes "
            f"{', '.join(supported_families)}",
        )
    for key in unsupported_counts:
        if header.integer(f"{family}.{key}", 0, width_max, default=0):
            header.fail(f"{family}.{key}", "models with this are not supported")
    hidden_size = header.integer(f"{family}.embedding_length", 1, width_max)
    num_heads = header.integer(f"{family}.attention.head_count", 1, heads_max)
    head_dim = _head_dim(header, family, hidden_size, num_heads)
    embedding = header.tensor("token_embd.weight")
    spec = ArchitectureSpec(
        family=family,
        num_layers=header.integer(f"{family}.block_count", 1, layers_max),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(header, family, num_heads),
        head_dim=head_dim,
        ffn_size=header.integer(f"{family}.feed_forward_length", 1, width_max),
        vocab_size=_vocab_size(header, family, embedding),
        context_length=header.integer(f"{family}.context_length", 1, context_length_max),
        norm_epsilon=header.number(f"{family}.attention.layer_norm_rms_epsilon", below=1.0),
        rope_style=RopeStyle.ADJACENT,
        rope_dimensions=_rope_dimensions(header, family, head_dim),
        rope_theta=header.number(f"{family}.rope.freq_base", default=10_000.0),
        rope_scale=_rope_scale(header, family),
        tied_output="output.weight" not in file.tensors,
    )
    _check_tensors(header, spec)
    return spec


def llama_tensor_shapes(spec: ArchitectureSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of this spec has; matrices (outputs, inputs)."""
    hidden, ffn = spec.hidden_size, spec.ffn_size
    query_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not spec.tied_output:
        shapes["output.weight"] = (spec.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (query_rows, hidden),
        "attn_k": (kv_rows, hidden),
        "attn_v": (kv_rows, hidden),
        "attn_output": (hidden, query_rows),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    for index in range(spec.num_layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


class _Header:
    """A file's metadata and tensors behind checks of kind and range."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.tensors: Mapping[str, Tensor] = file.tensors

    def fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(
            f"{self._file.path}: {field}: {problem}.", file=str(self._file.path), field=field
        )

    def has(self, key: str) -> bool:
        return key in self._file.metadata

    def text(self, key: str, default: str | None = None) -> str:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, str):
            self.fail(key, "is missing" if value is None else "is not text")
        return value

    def integer(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(key, "is missing" if value is None else "is not one integer")
        if not least <= value <= most:
            self.fail(key, f"{value} is not between {least} and {most}")
        return value

    def number(self, key: str, default: float | None = None, below: float = math.inf) -> float:
        """A number over 0."""
        value = self._file.metadata.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(key, "is missing" if value is None else "is not a number")
        if not 0 < value < below:
            self.fail(key, f"{value} is not over 0 and below {below:g}")
        return float(value)

    def tensor(self, name: str) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            self.fail(f"tensor {name}", "is missing")
        return tensor


def _head_dim(header: _Header, family: str, hidden_size: int, num_heads: int) -> int:
    key = f"{family}.attention.key_length"
    if not header.has(key) and hidden_size % num_heads:
        header.fail(
            f"{family}.attention.head_count",
            f"{hidden_size} values cannot be divided over {num_heads} heads",
        )
    head_dim = header.integer(key, 1, head_dim_max, default=hidden_size // num_heads)
    value_key = f"{family}.attention.value_length"
    if header.integer(value_key, 1, head_dim_max, default=head_dim) != head_dim:
        header.fail(value_key, f"differs from the key length {head_dim}, which is not supported")
    return head_dim


def _kv_heads(header: _Header, family: str, num_heads: int) -> int:
    key = f"{family}.attention.head_count_kv"
    num_kv_heads = header.integer(key, 1, num_heads, default=num_heads)
    if num_heads % num_kv_heads:
        header.fail(key, f"{num_heads} heads cannot share {num_kv_heads} evenly")
    return num_kv_heads


def _vocab_size(header: _Header, family: str, embedding: Tensor) -> int:
    rows = embedding.shape[0]
    key = f"{family}.vocab_size"
    if header.integer(key, 1, width_max, default=rows) != rows:
        header.fail(key, f"the embedding has {rows} rows")
    return rows


def _rope_dimensions(header: _Header, family: str, head_dim: int) -> int:
    key = f"{family}.rope.dimension_count"
    dimensions = header.integer(key, 2, head_dim, default=head_dim)
    if dimensions % 2:
        header.fail(key, f"{dimensions} is odd; rotations take pairs")
    return dimensions


def _rope_scale(header: _Header, family: str) -> float:
    type_key = f"{family}.rope.scaling.type"
    scaling = header.text(type_key, default="linear")
    if scaling not in rope_scalings:
        header.fail(
            type_key, f"{scaling!r} is not supported; headrace knows {', '.join(rope_scalings)}"
        )
    if scaling == "none":
        return 1.0
    # Files of 2023 have the factor under its older name.
    older = header.number(f"{family}.rope.scale_linear", default=1.0)
    return header.number(f"{family}.rope.scaling.factor", default=older)


def _check_tensors(header: _Header, spec: ArchitectureSpec) -> None:
    shapes = llama_tensor_shapes(spec)
    for name, shape in shapes.items():
        found = header.tensor(name).shape
        if found != shape:
            header.fail(f"tensor {name}", f"its shape is {found}, and {shape} by the metadata")
    for name in header.tensors:
        if name not in shapes:
            header.fail(
                f"tensor {name}",
                "is not part of a llama model that headrace computes; leaving it out would change "
                "the answers",
            )
