"""The matrix kernels of every weight type and instruction set, against NumPy in double precision.

Float weights: an error of 1e-5 of the sum of absolute products. Quantized weights: activations are
rounded to int16 in groups of 32, so the error is at most half a step of each group times the
weights' absolute sum; nothing may be lost beyond that.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Quantize = Callable[[Floats, str], tuple[int, Bytes, Floats]]

float_types = ["F32", "F16", "BF16"]
quantized_types = ["Q4_0", "Q4_1", "Q8_0"]
shapes = [(32, 16), (96, 40), (576, 17), (1536, 64)]  # (inputs, outputs)


def product(ggml_type: int, data: Bytes, rows: Floats, outputs: int, isa: str) -> Floats:
    out = np.full((len(rows), outputs), np.nan, np.float32)
    _native.matmul(ggml_type, data, rows, out, isa)
    return out


def group_steps(rows: Floats) -> Floats:
    """The int16 step of each activation's group, a power of two; the shape of `rows`."""
    peaks = np.abs(rows).reshape(len(rows), -1, 32).max(axis=-1)
    return np.repeat(np.exp2(np.ceil(np.log2(peaks / 16383))), 32, axis=1)


@pytest.mark.parametrize("type_name", float_types)
@pytest.mark.parametrize(("inputs", "outputs"), [*shapes, (50, 20)])
def test_float_weights_multiply_in_float(
    isa: str, quantize: Quantize, type_name: str, inputs: int, outputs: int
) -> None:
    rng = np.random.default_rng(inputs)
    weights = rng.normal(size=(outputs, inputs)).astype(np.float32)
    ggml_type, data, values = quantize(weights, type_name)
    rows = rng.normal(size=(9, inputs)).astype(np.float32)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    bound = 1e-5 * (np.abs(rows) @ np.abs(values.T)) + 1e-6
    assert (np.abs(product(ggml_type, data, rows, outputs, isa) - exact) <= bound).all()


@pytest.mark.parametrize("type_name", quantized_types)
@pytest.mark.parametrize(("inputs", "outputs"), shapes)
@pytest.mark.parametrize("row_count", [1, 2, 3, 5, 7, 16])
def test_quantized_weights_lose_only_the_rounding_of_activations(
    isa: str, quantize: Quantize, type_name: str, inputs: int, outputs: int, row_count: int
) -> None:
    rng = np.random.default_rng(inputs + row_count)
    weights = rng.normal(size=(outputs, inputs)).astype(np.float32)
    ggml_type, data, values = quantize(weights, type_name)
    rows = (rng.normal(size=(row_count, inputs)) ** 3).astype(np.float32)  # many outliers
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    bound = 0.501 * group_steps(rows) @ np.abs(values.T) + 1e-5 * np.abs(rows) @ np.abs(values.T)
    assert (np.abs(product(ggml_type, data, rows, outputs, isa) - exact) <= bound).all()


@pytest.mark.parametrize("type_name", quantized_types)
@pytest.mark.parametrize("row_count", [3, 33])  # many rows have kernels of their own
def test_integer_sums_are_exact_at_the_extremes(
    isa: str, quantize: Quantize, type_name: str, row_count: int
) -> None:
    inputs, outputs = 64, 16
    weights = np.full((outputs, inputs), -1.0, np.float32)  # the largest stored weights, and
    weights[::2] = 1.0  # one of the other sign, so that blocks have a range
    weights[:, 0::32] *= -1
    ggml_type, data, values = quantize(weights, type_name)
    rows = np.full((row_count, inputs), 127.0, np.float32)
    rows[1] = -127.0
    rows[2, ::2] = -127.0
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    found = product(ggml_type, data, rows, outputs, isa)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("row_count", [1, 33])
def test_the_smallest_eight_bit_weight_is_exact(isa: str, row_count: int) -> None:
    block = np.concatenate([np.array([1.0], np.float16).view(np.uint8), np.full(32, 0x80)])
    data = np.tile(block.astype(np.uint8), 16)  # 16 outputs of 32 weights, all -128
    rows = np.full((row_count, 32), -127.0, np.float32)
    found = product(8, data, rows, 16, isa)
    assert (found == 32 * 127 * 128).all()


@pytest.mark.parametrize("type_name", [*float_types, *quantized_types])
def test_a_row_does_not_depend_on_its_neighbours(
    isa: str, quantize: Quantize, type_name: str
) -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(48, 544)).astype(np.float32)  # an odd number of groups
    ggml_type, data, _ = quantize(weights, type_name)
    rows = (rng.normal(size=(150, 544)) ** 3).astype(np.float32)
    together = product(ggml_type, data, rows, 48, isa)
    for count in (*range(1, 14), 15, 16, 23, 24, 31, 33):
        apart = product(ggml_type, data, np.ascontiguousarray(rows[-count:]), 48, isa)
        assert (apart.view(np.uint32) == together[-count:].view(np.uint32)).all()


@pytest.mark.parametrize("type_name", quantized_types)
def test_products_and_products_of_sums_are_the_same(quantize: Quantize, type_name: str) -> None:
    rng = np.random.default_rng(5)
    ggml_type, data, _ = quantize(rng.normal(size=(48, 544)).astype(np.float32), type_name)
    rows = (rng.normal(size=(40, 544)) ** 3).astype(np.float32)
    ways = [product(ggml_type, data, rows, 48, f"avx512-{way}") for way in ("products", "sums")]
    assert (ways[0].view(np.uint32) == ways[1].view(np.uint32)).all()


@pytest.mark.parametrize("type_name", [*float_types, *quantized_types])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(
    isa: str, quantize: Quantize, type_name: str, poison: float
) -> None:
    weights = np.random.default_rng(2).normal(size=(16, 64)).astype(np.float32)
    ggml_type, data, _ = quantize(weights, type_name)
    rows = np.ones((2, 64), np.float32)
    rows[0, 40] = poison
    found = product(ggml_type, data, rows, 16, isa)
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("type_name", quantized_types)
@pytest.mark.parametrize("odd", ["zero weights", "tiny weights", "huge rows", "not finite"])
def test_many_rows_have_the_numbers_of_one_where_scales_are_odd(
    isa: str, quantize: Quantize, type_name: str, odd: str
) -> None:
    """Many rows' scales are powers of two that some kernels add to the weights' as exponents."""
    rng = np.random.default_rng(6)
    weights = rng.normal(size=(32, 544)).astype(np.float32)
    rows = rng.normal(size=(20, 544)).astype(np.float32)
    rows[3, 64:96] = 0
    rows[4] *= 1e-6
    if odd == "zero weights":
        weights[5, 96:128] = 0
        weights[20] = 0
    elif odd == "tiny weights":
        weights[7] *= 1e-6  # a scale that half precision holds as the least or as zero
    elif odd == "huge rows":
        rows[6, 100] = 1e6
        rows[7] *= 1e20
    else:
        rows[8, 200] = np.nan
        rows[9, 300] = np.inf
    ggml_type, data, _ = quantize(weights, type_name)
    together = product(ggml_type, data, rows, 32, isa)
    apart = [product(ggml_type, data, row[None], 32, isa)[0] for row in rows]
    assert (np.isfinite(together) == np.isfinite(apart)).all()
    finite = np.isfinite(together)
    assert (together[finite].view(np.uint32) == np.array(apart)[finite].view(np.uint32)).all()
    if odd == "not finite":
        assert not finite[8:10].any()
        assert finite[:8].all()


@pytest.mark.parametrize("type_name", quantized_types)
def test_zeros_and_tiny_rows_give_zeros(isa: str, quantize: Quantize, type_name: str) -> None:
    weights = np.random.default_rng(3).normal(size=(16, 64)).astype(np.float32)
    ggml_type, data, _ = quantize(weights, type_name)
    rows = np.zeros((2, 64), np.float32)
    rows[1] = 1e-38
    assert (product(ggml_type, data, rows, 16, isa) == 0).all()


@pytest.mark.parametrize("type_name", [*float_types, *quantized_types])
def test_an_embedding_row_is_what_the_file_says(quantize: Quantize, type_name: str) -> None:
    weights = np.random.default_rng(4).normal(size=(19, 96)).astype(np.float32)
    ggml_type, data, values = quantize(weights, type_name)
    row = np.empty(96, np.float32)
    for index in (0, 7, 15, 16, 18):
        _native.read_row(ggml_type, data, 19, index, row)
        np.testing.assert_allclose(row, values[index], rtol=1e-6)


@pytest.mark.parametrize("row_count", [1, 7, 13, 40])
def test_the_largest_sums_of_q6_k_fit(isa: str, row_count: int) -> None:
    block = np.zeros(210, np.uint8)  # all weights -32, by their bits
    block[192:208] = 0x80  # all codes -128
    block[208:210] = np.float16(2.0**-10).reshape(1).view(np.uint8)
    rows = np.full((row_count, 256), 16383.0, np.float32)  # the peak, with a scale of 1
    rows[::2] *= -1
    found = product(14, np.tile(block, 16), rows, 16, isa)
    exact = rows.astype(np.float64).sum(axis=1) * 32 * 128 * 2.0**-10
    np.testing.assert_allclose(found, np.repeat(exact[:, None], 16, axis=1), rtol=1e-6)
