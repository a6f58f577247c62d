"""Products of 8-bit weights and 8-bit activations, each four of which have a multiplier.

`rounded` says in NumPy what the activations become; products may differ from those with it by the
rounding of float sums alone. Instruction sets that gain nothing from it keep 16 bits.
"""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from headrace.kernels import _native

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

inputs, outputs = 768, 37
# Where half-precision numbers lie in a block of each type that is kept as bytes.
half_offsets: dict[str, tuple[int, ...]] = {
    **{"Q8_0": (0,), "Q5_0": (0,), "Q5_1": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()},
}
row_counts = [1, 2, 3, 4, 5, 6, 7, 9, 16, 33, 130]
largest = 16383  # of a group's integers


def random_matrix(type_name: str) -> tuple[int, Bytes, Floats]:
    """A type's number, the bytes of (37, 768) weights with every code and scale, their values."""
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


def extreme_weights(low: int, high: int) -> tuple[int, Bytes, Floats]:
    """Q8_0's least and largest codes in turns, in another order for each output."""
    kind = gguf.GGMLQuantizationType.Q8_0
    rng = np.random.default_rng(8)
    blocks = np.zeros((outputs, inputs // 32, 34), np.uint8)
    blocks[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
    blocks[:, :, 2:] = rng.choice(np.array([low, high], np.int8), (outputs, inputs // 32, 32)).view(
        np.uint8
    )
    values = gguf.quants.dequantize(blocks.reshape(outputs, -1), kind)
    return int(kind), blocks.reshape(-1), values.reshape(outputs, inputs)


def product(
    kind: int, data: Bytes, rows: Floats, isa: str, bits: int = 8, columns: int = outputs
) -> Floats:
    out = np.full((len(rows), columns), np.nan, np.float32)
    _native.matmul(kind, data, rows, out, isa, bits)
    return out


def rounded(rows: Floats) -> NDArray[np.float64]:
    """What is multiplied in place of these rows."""
    groups = rows.reshape(-1, 8, 4)
    peaks = np.abs(groups).max(axis=(1, 2)).astype(np.float64)
    exponents = np.ceil(np.log2(np.maximum(peaks, 1e-30) / largest)).astype(int)[:, None, None]
    whole = np.rint(np.ldexp(groups, -exponents))
    sides = np.maximum(np.maximum(whole, 0).sum(axis=2), np.maximum(-whole, 0).sum(axis=2))
    one = np.float32(1)
    multipliers = np.maximum(np.ceil(sides / np.float32(126)), one)[:, :, None]
    codes = np.rint(whole * (one / multipliers))  # of floats, so that a tie falls as it does there
    assert np.maximum(codes, 0).sum(axis=2).max() <= 128
    assert np.maximum(-codes, 0).sum(axis=2).max() <= 128
    exact: NDArray[np.float64] = np.ldexp((codes * multipliers).astype(np.float64), exponents)
    return exact.reshape(rows.shape)


def assert_products(found: Floats, rows: Floats, values: Floats) -> None:
    """Of the rounded rows, but for what sums of floats lose."""
    expected = rounded(rows)
    exact = expected @ values.T.astype(np.float64)
    bound = 2e-6 * np.abs(expected) @ np.abs(values.T.astype(np.float64))
    assert (np.abs(found - exact) <= bound + 1e-12).all()


def isas_with_fours() -> list[str]:
    """Those of this CPU; a name that it lacks is the best below it."""
    names = {_native.kernel_name(name): name for name in ("portable", "avx2", "avxvnni")}
    return [name for name in names.values() if _native.has_fours(name, 8)]


@pytest.fixture(params=isas_with_fours())
def fours_isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def heavy_rows(count: int, seed: int = 2) -> Floats:
    return (np.random.default_rng(seed).normal(size=(count, inputs)) ** 3).astype(np.float32)


@pytest.mark.parametrize("type_name", half_offsets)
@pytest.mark.parametrize("row_count", row_counts)
def test_products_are_those_of_rounded_rows(fours_isa: str, type_name: str, row_count: int) -> None:
    kind, data, values = random_matrix(type_name)
    rows = heavy_rows(row_count)
    found = product(kind, data, rows, fours_isa)
    assert_products(found, rows, values)
    exact = rows.astype(np.float64) @ values.T.astype(np.float64)
    assert (
        np.abs(found - exact).mean()
        > 5 * np.abs(product(kind, data, rows, fours_isa, 16) - exact).mean()
    )


signs = {
    "one": [1, 1, 1, 1, 1, 1, 1, 1],
    "turns": [1, -1, 1, -1, 1, -1, 1, -1],
    "pairs": [1, 1, -1, -1, 1, 1, -1, -1],
    "fours": [1, 1, 1, 1, -1, -1, -1, -1],
    "single": [0, 0, 1, 0, 0, 0, 0, -1],
}


@pytest.mark.parametrize("codes", [(-128, 127), (-127, 127), (127, 127), (-128, -128)])
@pytest.mark.parametrize("pattern", list(signs))
def test_the_largest_sums_fit(fours_isa: str, codes: tuple[int, int], pattern: str) -> None:
    kind, data, values = extreme_weights(*codes)
    rng = np.random.default_rng(9)
    rows = np.tile(np.array(signs[pattern], np.float32), (12, inputs // 8)) * largest
    rows[1::3] *= -1
    rows[2::3] *= rng.uniform(0.97, 1, (4, inputs)).astype(np.float32)
    rows[3] = np.where(rows[3] > 0, 16128, -16128)  # 31.5 times 512: ties that go up, to 128 a four
    assert_products(product(kind, data, rows, fours_isa), rows, values)


def single_weights() -> tuple[int, Bytes]:
    """Q8_0: output k is input k, of 32."""
    blocks = np.zeros((32, 34), np.uint8)
    blocks[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    blocks[:, 2:] = np.eye(32, dtype=np.uint8)
    return int(gguf.GGMLQuantizationType.Q8_0), blocks.reshape(-1)


@pytest.mark.parametrize("row_count", [1, 6, 7, 4000])
def test_every_input_has_its_own_byte_and_multiplier(fours_isa: str, row_count: int) -> None:
    kind, data = single_weights()
    rng = np.random.default_rng(row_count)
    wide = rng.normal(size=(row_count, 32)) ** rng.integers(1, 8, (row_count, 1))
    rows = (wide * 10.0 ** rng.integers(-9, 9, (row_count, 1))).astype(np.float32)
    rows[row_count // 2 :: 2] = np.rint(rows[row_count // 2 :: 2])  # many ties
    found = product(kind, data, rows, fours_isa, columns=32)
    assert (found == rounded(rows)).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=arrays(
        np.float32,
        (5, inputs),
        elements=st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, largest, -largest, 63.5]),
        fill=st.sampled_from([0.0, 1.0, -largest]).map(np.float32),
    )
)
def test_any_rows_are_multiplied_without_overflow(rows: Floats) -> None:
    kind, data, values = extreme_weights(-128, 127)
    for isa in isas_with_fours():
        assert_products(product(kind, data, rows, isa), rows, values)


@pytest.mark.parametrize("type_name", half_offsets)
def test_a_row_does_not_depend_on_its_neighbours(fours_isa: str, type_name: str) -> None:
    kind, data, _ = random_matrix(type_name)
    rows = heavy_rows(150, 3)
    together = product(kind, data, rows, fours_isa)
    for count in row_counts:
        apart = product(kind, data, np.ascontiguousarray(rows[-count:]), fours_isa)
        assert (apart.view(np.uint32) == together[-count:].view(np.uint32)).all()


@pytest.mark.parametrize("type_name", ["Q8_0", "Q5_0", "Q5_1", "MXFP4"])
@pytest.mark.parametrize("groups", [1, 3, 17])
def test_rows_of_any_width_count_alike(fours_isa: str, type_name: str, groups: int) -> None:
    kind, data, _ = random_matrix(type_name)
    group_bytes = len(data) * 32 // (inputs * outputs)
    columns = len(data) // group_bytes // groups
    narrow = data[: columns * groups * group_bytes]
    rows = np.ascontiguousarray(heavy_rows(47, 6)[:, : groups * 32])
    together = product(kind, narrow, rows, fours_isa, columns=columns)
    for row in (0, 6, 46):
        alone = product(kind, narrow, rows[row : row + 1].copy(), fours_isa, columns=columns)
        assert (alone.view(np.uint32) == together[row].view(np.uint32)).all()


@pytest.mark.parametrize("row_count", [1, 3, 5, 40])
@pytest.mark.parametrize("type_name", half_offsets)
def test_vector_instruction_sets_with_fours_agree_on_any_numbers(
    type_name: str, row_count: int
) -> None:
    kind, data, _ = random_matrix(type_name)
    isas = [name for name in isas_with_fours() if name != "portable"]
    found = [product(kind, data, heavy_rows(row_count, 4), name).view(np.uint32) for name in isas]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("type_name", half_offsets)
def test_scales_above_one_count_as_those_below(fours_isa: str, type_name: str) -> None:
    """Scales are added as exponents unless one of them is above 1, or a weight's is far from it."""
    kind, data, _ = random_matrix(type_name)
    rows = heavy_rows(20, 5)
    rows[3, 64:96] = 0
    below = product(kind, data, rows, fours_isa)
    above = product(kind, data, np.ldexp(rows, 20), fours_isa)
    assert (above == np.ldexp(below, 20)).all()


@pytest.mark.parametrize("exponent", [20, 70, 127, 180])
@pytest.mark.parametrize("peak", [1e-17, 1.0, 1e20])
def test_scales_far_from_one_count_alike_in_any_number(
    fours_isa: str, exponent: int, peak: float
) -> None:
    kind, data, _ = random_matrix("MXFP4")
    data = data.reshape(outputs, -1, 17).copy()
    data[:, :, 0] = exponent
    rows = heavy_rows(20, 7) * np.float32(peak)
    rows[:, 32:64] *= np.float32(1e-3)
    together = product(kind, data.reshape(-1), rows, fours_isa)
    apart = [product(kind, data.reshape(-1), row[None], fours_isa)[0] for row in rows]
    assert (together.view(np.uint32) == np.array(apart).view(np.uint32)).all()


def test_who_has_fours() -> None:
    having = {"portable", "avx2", "avx-vnni"}
    for limit in (
        "portable",
        "avx2",
        "avxvnni",
        "avx512",
        "avx512-products",
        "dotprod",
        "i8mm",
        "",
    ):
        assert _native.has_fours(limit, 8) == (_native.kernel_name(limit) in having)
        assert not _native.has_fours(limit, 16)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type_name", half_offsets)
def test_what_is_not_finite_stays_so(fours_isa: str, type_name: str, poison: float) -> None:
    kind, data, _ = random_matrix(type_name)
    for count in (2, 9):
        rows = np.ones((count, inputs), np.float32)
        rows[0, 40] = poison
        found = product(kind, data, rows, fours_isa)
        assert not np.isfinite(found[0]).any()
        assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("type_name", half_offsets)
def test_zeros_and_tiny_rows_give_zeros(fours_isa: str, type_name: str) -> None:
    kind, data, _ = random_matrix(type_name)
    rows = np.zeros((9, inputs), np.float32)
    rows[1] = 1e-38
    assert (product(kind, data, rows, fours_isa) == 0).all()


@pytest.mark.parametrize("type_name", half_offsets)
def test_instruction_sets_without_fours_keep_sixteen_bits(isa: str, type_name: str) -> None:
    kind, data, _ = random_matrix(type_name)
    rows = heavy_rows(7)
    same = (product(kind, data, rows, isa) == product(kind, data, rows, isa, 16)).all()
    assert same != _native.has_fours(isa, 8)
