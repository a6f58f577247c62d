"""The `gguf` package's dequantizers are the independent oracle."""

import gguf
import numpy as np
import pytest

from headrace.kernels.reference.dequantize import converters, dequantize

bytes_of_32 = {0: 128, 1: 64, 2: 18, 3: 20, 8: 34, 30: 64}
scale_offsets = {2: (0,), 3: (0, 2), 8: (0,)}  # half-precision numbers in each block


def random_blocks(type_number: int, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(type_number)
    data = rng.integers(0, 256, (rows, blocks, bytes_of_32[type_number]), dtype=np.uint8)
    for offset in scale_offsets.get(type_number, ()):
        scales = rng.normal(size=(rows, blocks, 1)).astype("<f2")
        data[:, :, offset : offset + 2] = scales.view(np.uint8)
    if type_number in {0, 1, 30}:
        values = rng.normal(size=(rows, blocks * 32)).astype(np.float32)
        as_bytes = {
            0: values.view(np.uint8),
            1: values.astype("<f2").view(np.uint8),
            30: np.ascontiguousarray((values.view(np.uint32) >> 16).astype("<u2")).view(np.uint8),
        }
        return as_bytes[type_number]
    return data.reshape(rows, -1)


@pytest.mark.parametrize("type_number", sorted(converters))
def test_values_equal_those_of_the_gguf_package_bit_for_bit(type_number: int) -> None:
    data = random_blocks(type_number, rows=5, blocks=3)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(type_number))
    values = dequantize(type_number, data.reshape(-1), (5, 96))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.reshape(5, 96))


def test_a_type_without_a_reference_is_named() -> None:
    with pytest.raises(ValueError, match="type 12"):
        dequantize(12, np.zeros(144, np.uint8), (256,))


@pytest.mark.parametrize("type_number", sorted(converters))
def test_bytes_that_do_not_fit_the_shape_are_refused(type_number: int) -> None:
    data = np.zeros(bytes_of_32[type_number] * 2, np.uint8)
    with pytest.raises(ValueError, match="reshape"):
        dequantize(type_number, data, (32,))
