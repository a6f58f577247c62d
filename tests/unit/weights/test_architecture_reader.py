from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import ArchitectureSpec, RopeScaling, RopeStyle
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import GgufFile
from headrace.weights.layout import required_shapes
from headrace.weights.tensor import Tensor, TensorType

metadata: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 128,
    "llama.rope.dimension_count": 8,
    "llama.rope.freq_base": 5000.0,
    "llama.vocab_size": 100,
}
spec = ArchitectureSpec(
    family="llama",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=48,
    vocab_size=100,
    context_length=128,
    norm_epsilon=1e-5,
    rope_style=RopeStyle.ADJACENT,
    rope_dimensions=8,
    rope_theta=5000.0,
    rope_scale=1.0,
    tied_output=True,
)
absent = object()


def model(shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> GgufFile:
    """A file with these tensors and metadata; a key's dots are written as two underscores."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    values = {key: value for key, value in (metadata | named).items() if value is not absent}
    tensors = {
        name: Tensor(name, TensorType.F32, shape, np.zeros(0, np.uint8))
        for name, shape in (required_shapes(spec) if shapes is None else shapes).items()
    }
    return GgufFile(Path("model.gguf"), values, tensors)


def test_a_llama_file_is_read_whole() -> None:
    assert read_architecture(model()) == spec


def test_an_output_matrix_of_its_own_is_seen() -> None:
    shapes = required_shapes(spec) | {"output.weight": (100, 32)}
    assert not read_architecture(model(shapes)).tied_output


def test_defaults_are_those_of_the_format() -> None:
    found = read_architecture(
        model(
            llama__rope__freq_base=absent,
            llama__rope__dimension_count=absent,
            llama__vocab_size=absent,
        )
    )
    assert found.rope_theta == 10_000.0
    assert found.rope_dimensions == 8
    assert found.vocab_size == 100


def test_heads_without_groups_have_a_key_each() -> None:
    shapes = required_shapes(spec)
    for layer in range(2):
        shapes |= {f"blk.{layer}.attn_{name}.weight": (32, 32) for name in "kv"}
    changed = model(shapes, **{"llama.attention.head_count_kv": absent})
    assert read_architecture(changed).num_kv_heads == 4


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}, 4.0),
        ({"llama__rope__scaling__type": "none", "llama__rope__scaling__factor": 4.0}, 1.0),
        ({"llama__rope__scale_linear": 2.0}, 2.0),
    ],
)
def test_linear_rope_scaling_is_read(changes: dict[str, Any], scale: float) -> None:
    assert read_architecture(model(**changes)).rope_scale == scale


def test_lists_of_divisors_are_used_where_no_type_is_said() -> None:
    """llama.cpp's own files of Phi-3 and Phi-4 have no type."""
    lists = {f"rope_factors_{name}.weight": (4,) for name in ("long", "short")}
    found = read_architecture(model(required_shapes(spec) | lists))
    assert found.rope_scaling is RopeScaling.LONGROPE


def test_dynamic_scaling_is_read_by_its_factor_and_by_its_name() -> None:
    for changes in (
        {"llama.rope.scaling.dynamic_factor": 2.0},
        {"llama.rope.scaling.type": "dynamic", "llama.rope.scaling.factor": 2.0},
    ):
        found = read_architecture(model(**changes))
        assert (found.rope_scaling, found.rope_scale) == (RopeScaling.DYNAMIC, 2.0)


@pytest.mark.parametrize(
    ("context", "factor", "served"), [(64, 4.0, 256), (512, 4.0, 512), (64, 1e30, 1 << 27)]
)
def test_yarn_serves_what_it_stretches_the_original_context_to(
    context: int, factor: float, served: int
) -> None:
    """As Qwen's instructions have it: YaRN is added, and the context stays what it was."""
    scaling = "llama.rope.scaling."
    keys: dict[str, Any] = {f"{scaling}type": "yarn", f"{scaling}original_context_length": 64}
    changes: dict[str, Any] = {f"{scaling}factor": factor, "llama.context_length": context}
    assert read_architecture(model(**keys, **changes)).context_length == served


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.freq_base", 1.0),
        ("rope.scaling.yarn_beta_fast", 1e300),
        ("rope.scaling.yarn_beta_slow", 1e-300),
    ],
)
def test_a_yarn_that_finds_no_pair_is_refused_by_its_key(key: str, value: float) -> None:
    changes: dict[str, Any] = {"llama.rope.scaling.type": "yarn", f"llama.{key}": value}
    with pytest.raises(ModelFileError) as raised:
        read_architecture(model(**changes))
    assert raised.value.fields["field"] == f"llama.{key}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("general.architecture", "mamba"),
        ("general.architecture", absent),
        ("llama.attention.causal", False),
        ("llama.block_count", 0),
        ("llama.block_count", 10**6),
        ("llama.block_count", "2"),
        ("llama.block_count", True),
        ("llama.embedding_length", absent),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 5),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", 8),
        ("llama.attention.head_count_kv", np.array([2, 2])),
        ("llama.attention.value_length", 16),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", absent),
        ("llama.rope.freq_base", float("inf")),
        ("llama.rope.freq_base", -1.0),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.dimension_count", 16),
        ("llama.rope.scaling.type", "su"),
        ("llama.rope.scaling.factor", 0.0),
        ("llama.vocab_size", 99),
        ("llama.context_length", 0),
        ("llama.expert_count", 10**6),
        ("llama.attention.sliding_window", -1),
    ],
)
def test_a_value_out_of_range_or_unsupported_is_named(field: str, value: Any) -> None:
    with pytest.raises(ModelFileError) as raised:
        read_architecture(model(**{field: value}))
    assert raised.value.fields["field"] == field
    assert "model.gguf" in raised.value.message


def test_an_unsupported_family_and_scaling_are_named() -> None:
    with pytest.raises(ModelFileError, match="'mamba'"):
        read_architecture(model(general__architecture="mamba"))
    with pytest.raises(ModelFileError, match="'su'"):
        read_architecture(model(llama__rope__scaling__type="su"))


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_up.weight"])
def test_a_missing_tensor_is_named(name: str) -> None:
    shapes = required_shapes(spec)
    del shapes[name]
    with pytest.raises(ModelFileError, match=f"tensor {name}: is missing"):
        read_architecture(model(shapes))


def test_a_tensor_of_another_shape_is_named() -> None:
    shapes = required_shapes(spec) | {"blk.0.attn_k.weight": (32, 32)}
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_k\.weight"):
        read_architecture(model(shapes))


@pytest.mark.parametrize(
    "name", ["output_norm.bias", "blk.0.attn_q_norm.weight", "blk.2.attn_q.weight"]
)
def test_a_tensor_that_would_be_left_out_is_refused(name: str) -> None:
    shapes = required_shapes(spec) | {name: (32,)}
    with pytest.raises(ModelFileError, match="would change the answers"):
        read_architecture(model(shapes))
