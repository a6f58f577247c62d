"""Quantized safetensors, packed here as their formats say, against what the packed numbers mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.kernels.reference.dequantize import dequantize
from headrace.weights.huggingface.quantization import weights_of
from headrace.weights.huggingface.safetensors_file import read_stored
from headrace.weights.tensor import Tensor, TensorType

torch = pytest.importorskip("torch", reason="PyTorch writes FP8: pip install torch==2.13.0")
save_file = pytest.importorskip("safetensors.torch").save_file

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
outputs, inputs = 24, 128
stem = "model.layers.0.mlp.down_proj"


def read(
    tmp_path: Path, tensors: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Tensor, str]:
    path = tmp_path / "model.safetensors"
    save_file(
        {name: torch.as_tensor(value).clone().contiguous() for name, value in tensors.items()}, path
    )
    weights, notes = weights_of(
        read_stored(path), {"quantization_config": config}, tmp_path / "config.json"
    )
    return weights[f"{stem}.weight"], notes[0]


def values_of(tensor: Tensor) -> Floats:
    return dequantize(int(tensor.type), np.array(tensor.data), tensor.shape)


def packed(codes: Ints, bits: int) -> NDArray[np.int32]:
    """Each row's codes as one stream of bits in 32-bit words, the lowest first."""
    rows = []
    for row in codes.tolist():
        stream = sum(code << place * bits for place, code in enumerate(row))
        words = -(-len(row) * bits // 32)
        rows.append(np.frombuffer(stream.to_bytes(words * 4, "little"), np.int32))
    return np.array(rows)


def awq_packed(codes: Ints) -> NDArray[np.int32]:
    """Eight columns a word, in AutoAWQ's order."""
    words = np.zeros((len(codes), codes.shape[1] // 8), np.uint32)
    for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def drawn(bits: int, group_size: int, *, symmetric: bool) -> tuple[Ints, Floats, Ints]:
    """Codes (outputs, inputs), scales and zeros (outputs, groups)."""
    rng = np.random.default_rng(bits * 100 + group_size)
    groups = inputs // group_size
    scales = (rng.uniform(0.001, 0.02, (outputs, groups))).astype(np.float16).astype(np.float32)
    middle = 1 << bits - 1
    zeros = np.full((outputs, groups), middle)
    if not symmetric:
        zeros = rng.integers(1, 1 << bits, (outputs, groups))
    return rng.integers(0, 1 << bits, (outputs, inputs)), scales, zeros


def meaning(codes: Ints, scales: Floats, zeros: Ints, group_of: Ints) -> Floats:
    found: Floats = (codes - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]
    return found


def in_order(group_size: int) -> Ints:
    return np.arange(inputs) // group_size


gptq_kinds = [
    (4, 32, True, TensorType.Q4_0),
    (4, 128, True, TensorType.Q4_0),
    (4, 64, False, TensorType.Q5_0),
    (3, 32, False, TensorType.Q4_0),
    (2, 64, False, TensorType.Q4_0),
    (8, 32, True, TensorType.Q8_0),
]


@pytest.mark.parametrize(("bits", "group_size", "symmetric", "kind"), gptq_kinds)
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq_in_order_is_kept_exactly(
    tmp_path: Path, bits: int, group_size: int, symmetric: bool, kind: TensorType, version: str
) -> None:
    codes, scales, zeros = drawn(bits, group_size, symmetric=symmetric)
    if bits == 3:  # what is stored less one has no room for the zero 0
        zeros = np.maximum(zeros, 1)
    stored_zeros = zeros if version == "gptq_v2" else zeros - 1
    tensor, note = read(
        tmp_path,
        {
            f"{stem}.qweight": packed(codes, bits).T,
            f"{stem}.qzeros": packed(stored_zeros.T, bits),
            f"{stem}.scales": scales.T.astype(np.float16),
            f"{stem}.g_idx": in_order(group_size).astype(np.int32),
        },
        {"quant_method": "gptq", "bits": bits, "checkpoint_format": version},
    )
    assert tensor.type is kind
    expected = meaning(codes, scales, zeros, in_order(group_size))
    np.testing.assert_array_equal(values_of(tensor), expected)
    assert note == f"gptq weights: 1 as {kind.name}, exactly"


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_by_activation_order_is_rounded_and_says_so(tmp_path: Path, symmetric: bool) -> None:
    codes, scales, zeros = drawn(4, 32, symmetric=symmetric)
    group_of = np.random.default_rng(1).permutation(in_order(32))
    tensor, note = read(
        tmp_path,
        {
            f"{stem}.qweight": packed(codes, 4).T,
            f"{stem}.qzeros": packed(zeros.T - 1, 4),
            f"{stem}.scales": scales.T.astype(np.float16),
            f"{stem}.g_idx": group_of.astype(np.int32),
        },
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
    )
    check_rounded(tensor, note, meaning(codes, scales, zeros, group_of))


def check_rounded(tensor: Tensor, note: str, expected: Floats) -> None:
    assert tensor.type is TensorType.Q8_0
    assert note.endswith("1 as Q8_0, rounded")
    largest = np.abs(expected.reshape(-1, 32)).max(axis=1, keepdims=True)
    error = np.abs(values_of(tensor) - expected).reshape(-1, 32)
    assert (error <= largest * (1 / 254 + 1 / 2048)).all()
    assert error.max() > 0


def test_awq_is_kept_exactly(tmp_path: Path) -> None:
    codes, scales, zeros = drawn(4, 64, symmetric=False)
    zeros[0, 0] = 0
    tensor, _ = read(
        tmp_path,
        {
            f"{stem}.qweight": awq_packed(codes.T),
            f"{stem}.qzeros": awq_packed(zeros.T),
            f"{stem}.scales": scales.T.astype(np.float16),
        },
        {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"},
    )
    assert tensor.type is TensorType.Q5_0
    np.testing.assert_array_equal(values_of(tensor), meaning(codes, scales, zeros, in_order(64)))


@pytest.mark.parametrize("scale_shape", [(), (1,), (outputs, 1), (outputs,), (3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_read_under_scales_of_every_shape(
    tmp_path: Path, scale_shape: tuple[int, ...], dtype: str
) -> None:
    rng = np.random.default_rng(2)
    weights = torch.tensor(rng.normal(size=(outputs, inputs)) * 40).to(getattr(torch, dtype))
    scales = torch.tensor(rng.uniform(0.001, 0.02, scale_shape)).to(torch.bfloat16)
    whole = scales.float().reshape({0: (1, 1), 1: (-1, 1)}.get(len(scale_shape), scale_shape))
    rows, columns = (-(-side // count) for side, count in zip((24, 128), whole.shape, strict=True))
    spread = whole.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    blocks = len(scale_shape) == 2 and scale_shape[1] > 1
    tensor, note = read(
        tmp_path,
        {
            f"{stem}.weight": weights,
            f"{stem}.weight_scale_inv" if blocks else f"{stem}.weight_scale": scales,
            f"{stem}.input_scale": torch.ones(1),
        },
        {"quant_method": "fp8", **({"weight_block_size": [8, 32]} if blocks else {})},
    )
    check_rounded(tensor, note, (weights.float() * spread).numpy())


@pytest.mark.parametrize("block", [[-128, 128], [128, 0], [128], 128, ["a", "b"], [True, 8]])
def test_an_impossible_block_of_fp8_is_refused_by_name(tmp_path: Path, block: object) -> None:
    tensors = {
        f"{stem}.weight": torch.ones((outputs, inputs)).to(torch.float8_e4m3fn),
        f"{stem}.weight_scale_inv": torch.ones((1, 1)),
    }
    with pytest.raises(ModelFileError, match="weight_block_size") as refused:
        read(tmp_path, tensors, {"quant_method": "fp8", "weight_block_size": block})
    assert refused.value.fields["field"] == "weight_block_size"


def test_the_last_block_of_fp8_may_be_cut(tmp_path: Path) -> None:
    weights = torch.full((outputs, inputs), 1.0).to(torch.float8_e4m3fn)
    scales = torch.arange(1.0, 5.0).reshape(2, 2)
    tensor, _ = read(
        tmp_path,
        {f"{stem}.weight": weights, f"{stem}.weight_scale_inv": scales},
        {"quant_method": "fp8", "weight_block_size": [16, 96]},
    )
    found = values_of(tensor)
    assert [round(float(found[row, column]), 2) for row, column in ((0, 0), (0, 96), (16, 95))] == [
        *(1.0, 2.0, 3.0)
    ]


@pytest.mark.parametrize("group_size", [32, inputs, None])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_bytes(
    tmp_path: Path, group_size: int | None, symmetric: bool
) -> None:
    codes, scales, zeros = drawn(8, group_size or inputs, symmetric=symmetric)
    if group_size is None:
        scales, zeros = scales[:1, :1], zeros[:1, :1]
    tensors = {
        f"{stem}.weight": (codes - 128).astype(np.int8),
        f"{stem}.weight_scale": scales if group_size else scales.reshape(1),
    }
    if not symmetric:
        tensors[f"{stem}.weight_zero_point"] = (zeros - 128).astype(np.int8)
    tensor, note = read(tmp_path, tensors, {"quant_method": "compressed-tensors"})
    expected = (codes - zeros[:, in_order(group_size or inputs)]) * scales[
        :, in_order(group_size or inputs)
    ]
    if symmetric:
        assert tensor.type is TensorType.Q8_0
        np.testing.assert_array_equal(values_of(tensor), expected.astype(np.float32))
    else:
        check_rounded(tensor, note, expected.astype(np.float32))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_compressed_tensors_packed(tmp_path: Path, symmetric: bool, act_order: bool) -> None:
    codes, scales, zeros = drawn(4, 32, symmetric=symmetric)
    group_of = in_order(32)
    if act_order:
        group_of = np.random.default_rng(1).permutation(group_of)
    tensors = {
        f"{stem}.weight_packed": packed(codes, 4),
        f"{stem}.weight_shape": np.array([outputs, inputs]),
        f"{stem}.weight_scale": scales.astype(np.float16),
        f"{stem}.weight_g_idx": group_of.astype(np.int32) if act_order else -np.ones(128, np.int32),
    }
    if not symmetric:
        tensors[f"{stem}.weight_zero_point"] = packed(zeros.T, 4).T
    tensor, note = read(
        tmp_path, tensors, {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    )
    expected = meaning(codes, scales, zeros, group_of)
    if act_order:
        check_rounded(tensor, note, expected)
    else:
        assert tensor.type is (TensorType.Q4_0 if symmetric else TensorType.Q5_0)
        np.testing.assert_array_equal(values_of(tensor), expected)


def test_rows_that_are_no_blocks_become_halves(tmp_path: Path) -> None:
    weights = torch.full((4, 40), 1.5).to(torch.float8_e4m3fn)
    tensor, _ = read(
        tmp_path,
        {f"{stem}.weight": weights, f"{stem}.weight_scale": torch.ones(1)},
        {"quant_method": "fp8"},
    )
    assert tensor.type is TensorType.F16
    assert values_of(tensor).tolist() == [[1.5] * 40] * 4


words = np.zeros((inputs // 8, outputs), np.int32)
gptq: dict[str, Any] = {
    f"{stem}.qweight": words,
    f"{stem}.qzeros": np.zeros((4, outputs // 8), np.int32),
    f"{stem}.scales": np.ones((4, outputs), np.float16),
}
e4m3 = {f"{stem}.weight": torch.zeros(outputs, inputs, dtype=torch.float8_e4m3fn)}
not_finite = torch.full((2, 32), float("nan")).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("method", "tensors", "problem"),
    [
        ("gptq", {f"{stem}.qweight": words}, "qzeros beside it"),
        ("gptq", gptq | {f"{stem}.qweight": words[:, :8]}, r"qweight is \(16, 8\)"),
        ("gptq", gptq | {f"{stem}.qzeros": words}, r"qzeros is \(16, 24\)"),
        ("gptq", gptq | {f"{stem}.g_idx": np.full(inputs, 9, np.int32)}, "none of 4"),
        ("gptq", gptq | {f"{stem}.g_idx": np.zeros(3, np.int32)}, "each of 128 inputs"),
        ("gptq", gptq | {f"{stem}.scales": np.full((4, outputs), np.inf, np.float16)}, "finite"),
        ("fp8", e4m3, "weight_scale beside it"),
        ("fp8", e4m3 | {f"{stem}.weight_scale": np.ones((7, 3), np.float32)}, r"is \(7, 3\)"),
        ("fp8", e4m3 | {f"{stem}.weight_scale": np.ones((24, 0), np.float32)}, "is empty"),
        (
            "compressed-tensors",
            {
                f"{stem}.weight": np.zeros((4, 32), np.int8),
                f"{stem}.weight_scale": np.ones((4, 0), np.float32),
            },
            "is empty",
        ),
        (
            "fp8",
            {f"{stem}.weight": not_finite, f"{stem}.weight_scale": np.ones(1, np.float32)},
            "a weight that is not finite",
        ),
        (
            "compressed-tensors",
            {f"{stem}.weight_packed": words, f"{stem}.weight_scale": np.ones(1, np.float32)},
            "no weight_shape",
        ),
        ("mxfp4", {"x.down_proj_blocks": np.zeros((1, 2, 1, 16), np.uint8)}, "no scales"),
        ("mxfp4", e4m3, "has type F8_E4M3"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, method: str, tensors: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem) as raised:
        values_of(read(tmp_path, tensors, {"quant_method": method})[0])
    assert str(raised.value.fields["field"]).startswith("tensor ")


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "awq", "version": "gemv"},
        {"quant_method": "awq", "zero_point": False},
        {"quant_method": "hqq"},
    ],
)
def test_a_way_that_is_not_read_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError) as raised:
        read(tmp_path, gptq, config)
    assert raised.value.fields["field"] == "quantization_config"
