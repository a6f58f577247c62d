"""From a model file to its architecture spec: every value in range, every tensor of its shape.

A file that passes can be computed as it says; what would be computed wrongly is refused by name.
"""

import math
from collections.abc import Mapping
from typing import NoReturn, Protocol

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import ArchitectureSpec, LayerSpec, RopeScaling
from headrace.weights.families import Family, families
from headrace.weights.layout import optional_shapes, required_shapes, runner_tensors
from headrace.weights.tensor import Tensor

layers_max = 1_024
number_end = 1e300  # past any model's: what is computed with a number stays finite
width_max = 1 << 22  # hidden, ffn and vocabulary sizes
heads_max = 4_096
head_dim_max = 1_024
context_length_max = 1 << 27
turns_end = 1e6  # of YaRN's; as far to the other side
experts_max = 1_024
known_scalings = ", ".join(RopeScaling)
gemma_27b = {"gemma2": 46, "gemma3": 62}  # layers of the sizes that scale scores by hidden_size


class ModelHeader(Protocol):
    """What is read of a model file: a GGUF file, or a Hugging Face directory in its terms."""

    @property
    def path(self) -> object:
        """Where it lies, for messages."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """GGUF's keys and values."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by its GGUF name."""
        ...


def read_architecture(file: ModelHeader) -> ArchitectureSpec:
    """Read and check a model's architecture; ModelFileError names what is wrong or unsupported."""
    header = _Header(file)
    name = header.text("general.architecture")
    family = families.get(name)
    if family is None:
        header.fail(
            "general.architecture",
            f"the family {name!r} is not supported; headrace computes {', '.join(families)}",
        )
    hidden_size = header.integer(f"{name}.embedding_length", 1, width_max)
    num_heads = header.integer(f"{name}.attention.head_count", 1, heads_max)
    causal = f"{name}.attention.causal"
    if header.boolean(causal, not family.encoder) is family.encoder:
        header.fail(causal, f"{family.encoder} is not supported in a {name} model")
    num_layers = header.integer(f"{name}.block_count", 1, layers_max)
    head_dim = _head_dim(header, name, hidden_size, num_heads)
    embedding = header.tensor("token_embd.weight")
    scaling = _rope_scaling(header, name)
    epsilon_key = "layer_norm_epsilon" if family.layer_norm else "layer_norm_rms_epsilon"
    root = math.sqrt(hidden_size) if family.embedding_by_root else 1.0
    experts = _Experts(header, family)
    spec = ArchitectureSpec(
        family=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(header, name, num_heads),
        head_dim=head_dim,
        ffn_size=header.integer(f"{name}.feed_forward_length", 1, width_max),
        vocab_size=_vocab_size(header, name, embedding),
        context_length=_context_length(header, name, scaling),
        norm_epsilon=header.number(f"{name}.attention.{epsilon_key}", below=1.0),
        rope_style=family.rope_style,
        rope_dimensions=0 if family.encoder else _rope_dimensions(header, name, head_dim),
        rope_theta=_rope_theta(header, name, scaling),
        rope_scale=_rope_scale(header, name),
        tied_output="output.weight" not in file.tensors,
        rope_scaling=scaling,
        original_context_length=_original_context(header, name, scaling),
        rope_magnitude=header.number(f"{name}.rope.scaling.attn_factor", default=1.0),
        yarn_beta_fast=_turns(header, f"{name}.rope.scaling.yarn_beta_fast", default=32.0),
        yarn_beta_slow=_turns(header, f"{name}.rope.scaling.yarn_beta_slow", default=1.0),
        yarn_whole_pairs=family.yarn_whole_pairs,
        local_rope_theta=_local_rope_theta(header, family),
        layers=_layers(header, family, num_layers),
        norm_placement=family.norm_placement,
        layer_norm=family.layer_norm,
        query_key_norm=family.query_key_norm,
        activation=family.activation,
        gated=family.gated,
        embedding_scale=header.number(f"{name}.embedding_scale", default=root),
        residual_scale=header.number(f"{name}.residual_scale", default=1.0),
        attention_scale=_attention_scale(header, family, num_layers, hidden_size // num_heads),
        attention_softcap=_softcap(
            header, f"{name}.attn_logit_softcapping", family.attention_softcap
        ),
        logit_softcap=_softcap(header, f"{name}.final_logit_softcapping", family.logit_softcap),
        logit_scale=1.0 / header.number(f"{name}.logit_scale", default=1.0),
        attention_sinks=family.sinks,
        encoder=family.encoder,
        expert_count=experts.count,
        experts_used=experts.used,
        expert_ffn_size=experts.ffn_size,
        expert_weights_normalized=experts.normalized,
        expert_weights_scale=experts.scale,
        shared_expert_ffn_size=experts.shared_ffn_size,
        shared_expert_gated=experts.shared_ffn_size > 0,
    )
    _check_tensors(header, spec)
    return spec


class _Header:
    """A file's metadata and tensors behind checks of kind and range."""

    def __init__(self, file: ModelHeader) -> None:
        self._file = file
        self.tensors: Mapping[str, Tensor] = file.tensors

    def fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(
            f"{self._file.path}: {field}: {problem}.", file=str(self._file.path), field=field
        )

    def has(self, key: str) -> bool:
        return key in self._file.metadata

    def is_zero(self, key: str) -> bool:
        value = self._file.metadata.get(key)
        return isinstance(value, int | float) and value == 0

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

    def number(self, key: str, default: float | None = None, below: float = number_end) -> float:
        """A number over 0."""
        value = self._file.metadata.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(key, "is missing" if value is None else "is not a number")
        if not 0 < value < below:
            self.fail(key, f"{value} is not over 0 and below {below:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, "is not a boolean")
        return value

    def flags(self, key: str, default: list[bool]) -> list[bool]:
        """A boolean for each layer."""
        value = self._file.metadata.get(key, default)
        if isinstance(value, np.ndarray) and value.ndim == 1:
            value = [bool(flag) for flag in value.tolist()]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= layers_max:
            return [value == 1 or index % value < value - 1 for index in range(len(default))]
        if not isinstance(value, list) or len(value) != len(default):
            self.fail(key, f"is not a boolean for each of {len(default)} layers")
        return value

    def tensor(self, name: str) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            self.fail(f"tensor {name}", "is missing")
        return tensor


class _Experts:
    """A file's mixture of experts; all zero where the network is dense."""

    def __init__(self, header: _Header, family: Family) -> None:
        name = family.name
        self.count = header.integer(f"{name}.expert_count", 0, experts_max, default=0)
        self.used = self.ffn_size = self.shared_ffn_size = 0
        self.normalized, self.scale = False, 1.0
        if not self.count:
            if family.experts:
                header.fail(f"{name}.expert_count", "is missing")
            return
        self.used = header.integer(f"{name}.expert_used_count", 1, self.count)
        dense = header.integer(f"{name}.feed_forward_length", 1, width_max)
        self.ffn_size = header.integer(
            f"{name}.expert_feed_forward_length", 1, width_max, default=dense
        )
        normalized = header.boolean(f"{name}.expert_weights_norm", family.experts_normalized)
        self.normalized = normalized
        self.scale = header.number(f"{name}.expert_weights_scale", default=1.0)
        if family.experts_shared:
            self.shared_ffn_size = header.integer(
                f"{name}.expert_shared_feed_forward_length", 1, width_max
            )


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


def _rope_scaling(header: _Header, family: str) -> RopeScaling:
    """By its name; files without one tell it by what else they have, as llama.cpp's of Phi-3 do."""
    key = f"{family}.rope.scaling.type"
    if header.has(f"{family}.rope.scaling.dynamic_factor"):
        return RopeScaling.DYNAMIC
    has_lists = "rope_factors_long.weight" in header.tensors
    scaling = header.text(key, default="longrope" if has_lists else "linear")
    if scaling == "none":
        return RopeScaling.LINEAR
    if scaling not in set(RopeScaling):
        header.fail(key, f"{scaling!r} is not supported; headrace knows none, {known_scalings}")
    return RopeScaling(scaling)


def _rope_scale(header: _Header, family: str) -> float:
    if header.text(f"{family}.rope.scaling.type", default="linear") == "none":
        return 1.0
    dynamic = f"{family}.rope.scaling.dynamic_factor"
    if header.has(dynamic):
        return header.number(dynamic)
    # Files of 2023 have the factor under its older name.
    older = header.number(f"{family}.rope.scale_linear", default=1.0)
    return header.number(f"{family}.rope.scaling.factor", default=older)


def _rope_theta(header: _Header, family: str, scaling: RopeScaling) -> float:
    key = f"{family}.rope.freq_base"
    theta = header.number(key, default=10_000.0)
    if scaling is RopeScaling.YARN and theta <= 1:
        header.fail(key, f"{theta:g} is not over 1, so that YaRN finds no pair by its turns")
    return theta


def _turns(header: _Header, key: str, default: float) -> float:
    """How often a pair turns in the original context."""
    turns = header.number(key, default, below=turns_end)
    if turns * turns_end < 1:
        header.fail(key, f"{turns:g} is below {1 / turns_end:g}")
    return turns


def _context_length(header: _Header, family: str, scaling: RopeScaling) -> int:
    """What the file says, or what YaRN stretches the original context to if that is more.

    Qwen's instructions add YaRN to a model, and leave its context as it was."""
    context = header.integer(f"{family}.context_length", 1, context_length_max)
    key = f"{family}.rope.scaling.original_context_length"
    if scaling is not RopeScaling.YARN or not header.has(key):
        return context
    original = header.integer(key, 1, context_length_max)
    stretched = min(original * _rope_scale(header, family), context_length_max)
    return max(context, int(stretched))


def _original_context(header: _Header, family: str, scaling: RopeScaling) -> int:
    key = f"{family}.rope.scaling.original_context_length"
    context = header.integer(f"{family}.context_length", 1, context_length_max)
    original = header.integer(key, 1, context_length_max, default=context)
    if scaling is RopeScaling.LONGROPE:
        for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
            header.tensor(name)
    return 0 if scaling is RopeScaling.LINEAR else original


def _local_rope_theta(header: _Header, family: Family) -> float:
    if not family.local_rope_theta:
        return 0.0
    return header.number(f"{family.name}.rope.freq_base_swa", default=family.local_rope_theta)


def _layers(header: _Header, family: Family, count: int) -> tuple[LayerSpec, ...]:
    """Which layers have a window and which are rotated how; empty if all are alike and plain."""
    window_key = f"{family.name}.attention.sliding_window"
    window = header.integer(window_key, 0, context_length_max, default=0)
    period = family.window_period
    windows = header.flags(
        f"{window_key}_pattern",
        [period == 1 or index % period < period - 1 for index in range(count)],
    )
    unrotated = family.unrotated_period
    rotated = header.flags(
        f"{family.name}.rope.layers",
        [not unrotated or (index + 1) % unrotated != 0 for index in range(count)],
    )
    layers = tuple(
        LayerSpec(
            window_tokens=window if has_window else 0,
            rotation=(-1 if not turns else 1 if has_window and family.local_rope_theta else 0),
        )
        for has_window, turns in zip(windows, rotated, strict=True)
    )
    return layers if any(layer != LayerSpec() for layer in layers) else ()


def _attention_scale(
    header: _Header, family: Family, num_layers: int, hidden_per_head: int
) -> float:
    key = f"{family.name}.attention.scale"
    default = 0.0
    if gemma_27b.get(family.name) == num_layers:
        default = 1.0 / math.sqrt(hidden_per_head)
    return header.number(key) if header.has(key) else default


def _softcap(header: _Header, key: str, default: float) -> float:
    if header.is_zero(key):  # switched off by the file
        return 0.0
    return header.number(key) if header.has(key) else default


def _check_tensors(header: _Header, spec: ArchitectureSpec) -> None:
    tensors = runner_tensors(spec, header.tensors)
    required = required_shapes(spec)
    known = required | optional_shapes(spec)
    for name in required:
        if name not in tensors:
            header.fail(f"tensor {name}", "is missing")
    for name, tensor in tensors.items():
        if name not in known:
            header.fail(
                f"tensor {name}",
                f"is not part of a {spec.family} model that headrace computes; leaving it out "
                "would change the answers",
            )
        if tensor.shape != known[name]:
            header.fail(
                f"tensor {name}",
                f"its shape is {tensor.shape}, and {known[name]} by the metadata",
            )
