"""Products of 4-bit weights and 8-bit activations, of every instruction set, to the bit.

Where all scales are powers of two and sums stay under 2^24, float32 rounds nothing: then a kernel
is right only if it finds the very number, and all instruction sets find the same.
"""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

inputs, outputs = 512, 40
# Where in a block of each type its float16 numbers stand: scales, and minimums.
halves = {"Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q2_K": (80, 82)}
row_counts = [1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 33, 130]


def random_weights(type_name: str, *, peak: bool = False) -> tuple[int, Bytes, Floats]:
    """A type's number, a file's bytes with powers of two for scales, and what they mean."""
    kind = gguf.GGMLQuantizationType[type_name]
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (outputs * inputs // block_values, block_bytes), np.uint8)
    if peak:
        blocks[:] = 255
    for offset in halves[type_name]:
        scales = 2.0 ** rng.integers(-2, 1, len(blocks))
        blocks[:, offset : offset + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    values = gguf.quants.dequantize(blocks, kind).reshape(outputs, inputs)
    return int(kind), blocks.reshape(-1), values


def whole_rows(count: int) -> Floats:
    """Activations that 8 bits hold exactly: small whole numbers, and 127 in each group of 32."""
    rng = np.random.default_rng(count)
    rows = rng.integers(-9, 10, (count, inputs)).astype(np.float32)
    rows[:, ::32] = 127 * rng.choice([-1, 1], (count, inputs // 32))
    return rows


def product(kind: int, data: Bytes, rows: Floats, isa: str, bits: int = 8) -> Floats:
    out = np.full((len(rows), outputs), np.nan, np.float32)
    _native.matmul(kind, data, rows, out, isa, bits)
    return out


@pytest.mark.parametrize("type_name", list(halves))
@pytest.mark.parametrize("row_count", row_counts)
def test_products_are_the_very_numbers(isa: str, type_name: str, row_count: int) -> None:
    kind, data, values = random_weights(type_name)
    rows = whole_rows(row_count)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    assert (product(kind, data, rows, isa) == exact).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_the_largest_sums_of_a_group_do_not_overflow(isa: str, type_name: str, sign: int) -> None:
    kind, data, values = random_weights(type_name, peak=True)
    rows = np.full((9, inputs), 127.0 * sign, np.float32)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    assert (product(kind, data, rows, isa) == exact).all()


@pytest.mark.parametrize("type_name", list(halves))
def test_only_the_rounding_of_activations_is_lost(isa: str, type_name: str) -> None:
    kind, data, values = random_weights(type_name)
    rows = (np.random.default_rng(2).normal(size=(20, inputs)) ** 3).astype(np.float32)
    steps = np.repeat(np.abs(rows).reshape(20, -1, 32).max(axis=-1) / 127, 32, axis=1)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    bound = (0.501 * steps + 1e-5 * np.abs(rows)) @ np.abs(values.T)
    errors = np.abs(product(kind, data, rows, isa) - exact)
    assert (errors <= bound).all()
    assert errors.mean() > 20 * np.abs(product(kind, data, rows, isa, 16) - exact).mean()


@pytest.mark.parametrize("type_name", list(halves))
def test_a_row_does_not_depend_on_its_neighbours(isa: str, type_name: str) -> None:
    kind, data, _ = random_weights(type_name)
    rows = (np.random.default_rng(3).normal(size=(150, inputs)) ** 3).astype(np.float32)
    together = product(kind, data, rows, isa)
    for count in row_counts:
        apart = product(kind, data, np.ascontiguousarray(rows[-count:]), isa)
        assert (apart.view(np.uint32) == together[-count:].view(np.uint32)).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_a_group_without_a_second_counts_as_the_others_do(isa: str, type_name: str) -> None:
    kind, data, _ = random_weights(type_name)
    narrow = data[: len(data) * 96 // inputs]  # three groups an output
    rows = (np.random.default_rng(5).normal(size=(12, 96)) ** 3).astype(np.float32)
    together = product(kind, narrow, rows, isa)
    for count in range(1, 12):
        apart = product(kind, narrow, np.ascontiguousarray(rows[-count:]), isa)
        assert (apart.view(np.uint32) == together[-count:].view(np.uint32)).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("groups", [1, 17, 40])
def test_many_rows_of_any_width_count_as_one_does(isa: str, type_name: str, groups: int) -> None:
    kind, data, _ = random_weights(type_name)
    group_bytes = len(data) * 32 // (inputs * outputs)
    out_count = len(data) // group_bytes // groups
    narrow = data[: out_count * groups * group_bytes]
    rows = (np.random.default_rng(6).normal(size=(47, groups * 32)) ** 3).astype(np.float32)
    together = np.full((len(rows), out_count), np.nan, np.float32)
    _native.matmul(kind, narrow, rows, together, isa, 8)
    for row in (0, 6, 7, 46):
        alone = np.full((1, out_count), np.nan, np.float32)
        _native.matmul(kind, narrow, rows[row : row + 1].copy(), alone, isa, 8)
        assert (alone.view(np.uint32) == together[row].view(np.uint32)).all()


@pytest.mark.parametrize("row_count", [5, 40])
@pytest.mark.parametrize("type_name", list(halves))
def test_vector_instruction_sets_agree_on_any_numbers(
    vector_isas: list[str], type_name: str, row_count: int
) -> None:
    kind, data, _ = random_weights(type_name)
    rows = (np.random.default_rng(4).normal(size=(row_count, inputs)) ** 3).astype(np.float32)
    found = [product(kind, data, rows, name).view(np.uint32) for name in vector_isas]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("type_name", list(halves))
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(isa: str, type_name: str, poison: float) -> None:
    kind, data, _ = random_weights(type_name)
    rows = np.ones((2, inputs), np.float32)
    rows[0, 40] = poison
    found = product(kind, data, rows, isa)
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("type_name", list(halves))
def test_zeros_and_tiny_rows_give_zeros(isa: str, type_name: str) -> None:
    kind, data, _ = random_weights(type_name)
    rows = np.zeros((2, inputs), np.float32)
    rows[1] = 1e-38
    assert (product(kind, data, rows, isa) == 0).all()


def test_other_numbers_of_bits_are_refused() -> None:
    kind, data, _ = random_weights("Q4_0")
    with pytest.raises(ValueError, match="16 or 8 bits"):
        product(kind, data, whole_rows(1), "", 12)
