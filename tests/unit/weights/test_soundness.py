"""Numbers that are none are refused by their tensor's name, in every type that has a scale."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.kernels.reference.dequantize import converters, dequantize
from headrace.weights.soundness import check_weights, half_offsets
from headrace.weights.tensor import Tensor, TensorType, block_layouts, bytes_of

values = 512
quantized = [TensorType(number) for number in converters if number not in (0, 1, 30)]


def zeros(kind: TensorType) -> Tensor:
    data = np.zeros(bytes_of(kind, values), np.uint8)
    return Tensor("blk.0.ffn_up.weight", kind, (2, values // 2), data)


def check(tensor: Tensor) -> list[str]:
    return check_weights({tensor.name: tensor})


@pytest.mark.parametrize("kind", quantized)
def test_a_scale_that_is_no_number_is_found_where_it_stands(kind: TensorType) -> None:
    block = block_layouts[kind].bytes
    offsets = half_offsets.get(kind, ())
    assert offsets or kind is TensorType.MXFP4
    for offset in offsets:
        tensor = zeros(kind)
        assert isinstance(tensor.source, np.ndarray)
        tensor.source[block + offset : block + offset + 2] = [0, 0x7E]  # a NaN, in the second block
        with pytest.raises(ModelFileError, match=r"tensor blk\.0\.ffn_up\.weight has a scale"):
            check(tensor)
        assert not np.isfinite(dequantize(int(kind), tensor.source, (values,))).all()


@pytest.mark.parametrize("kind", quantized)
def test_any_codes_under_plain_scales_pass(kind: TensorType) -> None:
    rng = np.random.default_rng(0)
    layout = block_layouts[kind]
    data = rng.integers(0, 256, bytes_of(kind, values), dtype=np.uint8).reshape(-1, layout.bytes)
    for offset in half_offsets.get(kind, ()):
        data[:, offset : offset + 2] = np.array([0.5], "<f2").view(np.uint8)
    if kind is TensorType.MXFP4:
        data[:, 0] = 127
    assert check(replace(zeros(kind), source=data.reshape(-1))) == []
    if kind is TensorType.MXFP4:
        data[1, 0] = 255
        with pytest.raises(ModelFileError, match="a scale that is not a number"):
            check(replace(zeros(kind), source=data.reshape(-1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
def test_a_float_that_is_no_number_is_found(kind: TensorType, bad: float) -> None:
    numbers = np.ones(values, np.float32)
    numbers[values - 1] = bad
    data = {
        TensorType.F32: numbers.view(np.uint8),
        TensorType.F16: numbers.astype(np.float16).view(np.uint8),
        TensorType.BF16: (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
    }[kind]
    with pytest.raises(ModelFileError, match="a value that is not a finite number"):
        check(replace(zeros(kind), source=data))


def test_a_number_that_no_model_has_is_refused() -> None:
    numbers = np.full(values, -3e7, np.float32)
    with pytest.raises(ModelFileError, match=r"a value of 3e\+07"):
        check(replace(zeros(TensorType.F32), source=numbers.view(np.uint8)))


def test_a_power_of_two_that_no_scale_has_is_refused() -> None:
    tensor = zeros(TensorType.MXFP4)
    assert isinstance(tensor.source, np.ndarray)
    tensor.source[block_layouts[tensor.type].bytes] = 254
    with pytest.raises(ModelFileError, match=r"a scale of 1\.7e\+38, which no model has"):
        check(tensor)


def test_a_matrix_of_zeros_is_remarked() -> None:
    for kind in (TensorType.F16, TensorType.Q4_0):
        assert check(zeros(kind)) == ["tensor blk.0.ffn_up.weight is all zeros"]
