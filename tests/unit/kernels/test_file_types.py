"""Every quantized type of GGUF files through packing and the kernels, on random blocks.

The `gguf` package says what the blocks mean. Packing may lose nothing; multiplying may lose only
the rounding of activations (see test_matmul.py).
"""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

# Where half-precision numbers lie in each type's block.
half_offsets: dict[str, tuple[int, ...]] = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)},
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()},
}
outputs, inputs = 37, 768


def random_matrix(type_name: str) -> tuple[int, Bytes, Floats]:
    """A type number, the bytes of (37, 768) weights with every code and scale, and their values."""
    kind = gguf.GGMLQuantizationType[type_name]
    rng = np.random.default_rng(int(kind))
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (outputs, inputs // block_values, block_bytes), dtype=np.uint8)
    for offset in half_offsets[type_name]:
        numbers = (rng.normal(size=(*data.shape[:2], 1)) / 100).astype("<f2")
        data[:, :, offset : offset + 2] = numbers.view(np.uint8)
    if type_name == "MXFP4":
        data[:, :, 0] = rng.integers(110, 130, data.shape[:2])
    values = gguf.quants.dequantize(data.reshape(outputs, -1), kind).reshape(outputs, inputs)
    return int(kind), data.reshape(-1), values


def product(ggml_type: int, data: Bytes, rows: Floats, isa: str) -> Floats:
    out = np.full((len(rows), outputs), np.nan, np.float32)
    _native.matmul(ggml_type, data, rows, out, isa)
    return out


@pytest.mark.parametrize("type_name", half_offsets)
def test_packing_keeps_every_weight_bit_for_bit(type_name: str) -> None:
    ggml_type, data, values = random_matrix(type_name)
    row = np.empty(inputs, np.float32)
    for output in range(outputs):
        _native.read_row(ggml_type, data, outputs, output, row)
        np.testing.assert_array_equal(row, values[output])


@pytest.mark.parametrize("type_name", half_offsets)
@pytest.mark.parametrize("exponent", [1, 3])  # 3: many outliers
def test_products_lose_only_the_rounding_of_activations(
    isa: str, type_name: str, exponent: int
) -> None:
    ggml_type, data, values = random_matrix(type_name)
    rng = np.random.default_rng(exponent)
    rows = (rng.normal(size=(7, inputs)) ** exponent).astype(np.float32)
    peaks = np.abs(rows).reshape(len(rows), -1, 32).max(axis=-1) / 127
    bound = (0.501 * np.repeat(peaks, 32, axis=1) + 1e-5 * np.abs(rows)) @ np.abs(values.T)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    assert (np.abs(product(ggml_type, data, rows, isa) - exact) <= bound).all()


@pytest.mark.parametrize("type_name", half_offsets)
@pytest.mark.parametrize("row_count", [6, 38])  # many rows have kernels of their own
def test_whole_numbers_multiply_without_loss(isa: str, type_name: str, row_count: int) -> None:
    ggml_type, data, values = random_matrix(type_name)
    rng = np.random.default_rng(7)
    rows = rng.integers(-127, 128, (row_count, inputs)).astype(np.float32)
    rows[0], rows[1] = 127.0, -127.0  # the largest sums that the kernels must hold
    rows[:, 0::32], rows[2:, 1::32] = 127.0, -127.0  # each group's step is then 1
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    bound = 1e-5 * np.abs(rows) @ np.abs(values.T)
    assert (np.abs(product(ggml_type, data, rows, isa) - exact) <= bound).all()


@pytest.mark.parametrize("type_name", half_offsets)
def test_a_row_does_not_depend_on_its_neighbours(isa: str, type_name: str) -> None:
    ggml_type, data, _ = random_matrix(type_name)
    rows = (np.random.default_rng(1).normal(size=(45, inputs)) ** 3).astype(np.float32)
    together = product(ggml_type, data, rows, isa)
    for count in (1, 2, 3, 4, 5, 8, 13, 17, 26, 33):
        apart = product(ggml_type, data, np.ascontiguousarray(rows[-count:]), isa)
        np.testing.assert_array_equal(apart.view(np.uint32), together[-count:].view(np.uint32))


@pytest.mark.parametrize("type_name", half_offsets)
@pytest.mark.parametrize("row_count", [5, 38])
def test_vector_instruction_sets_agree_on_any_numbers(
    vector_isas: list[str], type_name: str, row_count: int
) -> None:
    ggml_type, data, _ = random_matrix(type_name)
    rows = (np.random.default_rng(2).normal(size=(row_count, inputs)) ** 3).astype(np.float32)
    found = [product(ggml_type, data, rows, name).view(np.uint32) for name in vector_isas]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("type_name", half_offsets)
def test_zeros_give_zeros_and_infinity_stays(isa: str, type_name: str) -> None:
    ggml_type, data, _ = random_matrix(type_name)
    rows = np.zeros((2, inputs), np.float32)
    rows[1, 40] = np.inf
    found = product(ggml_type, data, rows, isa)
    assert (found[0] == 0).all()
    assert not np.isfinite(found[1]).any()
