"""The `gguf` package's dequantizers are the independent oracle."""

import gguf
import numpy as np
import pytest

from headrace.kernels.reference.dequantize import converters, dequantize

# Where half-precision numbers lie in each block of a quantized type.
half_offsets = {
    **{2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 10: (80, 82), 11: (108,)},
    **{12: (0, 2), 13: (0, 2), 14: (208,), 20: (0,), 23: (0,)},
}


def random_blocks(type_number: int, rows: int, values: int) -> np.ndarray:
    rng = np.random.default_rng(type_number)
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_number)]
    if type_number in {0, 1, 30}:
        floats = rng.normal(size=(rows, values)).astype(np.float32)
        as_bytes = {
            0: floats.view(np.uint8),
            1: floats.astype("<f2").view(np.uint8),
            30: np.ascontiguousarray((floats.view(np.uint32) >> 16).astype("<u2")).view(np.uint8),
        }
        return as_bytes[type_number]
    data = rng.integers(0, 256, (rows, values // block_values, block_bytes), dtype=np.uint8)
    for offset in half_offsets.get(type_number, ()):
        scales = rng.normal(size=(*data.shape[:2], 1)).astype("<f2")
        data[:, :, offset : offset + 2] = scales.view(np.uint8)
    if type_number == 39:
        data[0, :2, 0] = (0, 1)  # scales below the smallest normal float
        data[1:, :, 0] = np.minimum(data[1:, :, 0], 250)  # and no overflow to infinity
    return data.reshape(rows, -1)


@pytest.mark.parametrize("type_number", sorted(converters))
def test_values_equal_those_of_the_gguf_package_bit_for_bit(type_number: int) -> None:
    data = random_blocks(type_number, rows=5, values=768)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(type_number))
    values = dequantize(type_number, data.reshape(-1), (5, 768))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.reshape(5, 768))


def test_a_type_without_a_reference_is_named() -> None:
    with pytest.raises(ValueError, match="type 16"):
        dequantize(16, np.zeros(66, np.uint8), (256,))


@pytest.mark.parametrize("type_number", sorted(converters))
def test_bytes_that_do_not_fit_the_shape_are_refused(type_number: int) -> None:
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_number)]
    data = np.zeros(block_bytes * 2, np.uint8)
    with pytest.raises(ValueError, match="reshape"):
        dequantize(type_number, data, (block_values,))
