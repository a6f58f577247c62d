"""Our quantizers against the `gguf` package's: equal blocks, or for the K types small errors."""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.quantize import quantize

Floats = NDArray[np.float32]


def weights(seed: int, shape: tuple[int, int] = (24, 512)) -> Floats:
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=shape) ** 3 / 50).astype(np.float32)
    values[0] = 0
    values[1] = np.abs(values[1])
    values[2, :256] = 0.25
    return values


def error(type_name: str, values: Floats) -> float:
    kind = gguf.GGMLQuantizationType[type_name]
    data = quantize(int(kind), values)
    mine = dequantize(int(kind), data, values.shape)
    theirs = gguf.quants.dequantize(data.reshape(len(values), -1), kind)
    np.testing.assert_array_equal(mine, theirs)  # what is stored means the same to both
    return float(np.sqrt(np.mean((mine - values) ** 2) / np.mean(values**2)))


blockwise = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]


@pytest.mark.parametrize("name", blockwise)
def test_blocks_are_those_of_the_gguf_package(name: str) -> None:
    values = weights(1)
    kind = gguf.GGMLQuantizationType[name]
    expected = gguf.quants.quantize(values, kind)
    assert quantize(int(kind), values).tobytes() == expected.tobytes()


searched = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
smaller_errors = [
    *(("Q4_K", "Q4_1", 0.9), ("Q6_K", "Q5_1", 0.5), ("Q5_K", "Q5_1", 0.95)),
    *(("IQ4_NL", "Q4_0", 0.95), ("IQ4_XS", "Q4_0", 0.97), ("Q3_K", "Q2_K", 0.6)),
    ("Q2_K", "Q4_0", 4.0),
]


@pytest.mark.parametrize(("name", "simple", "most"), smaller_errors)
def test_k_types_lose_less_than_simple_ones(name: str, simple: str, most: float) -> None:
    values = weights(2)
    assert error(name, values) < most * error(simple, values)


@pytest.mark.parametrize("name", [*searched, "Q4_0"])
def test_what_matters_is_kept_better_at_the_expense_of_the_rest(name: str) -> None:
    kind = int(gguf.GGMLQuantizationType[name])
    values = weights(4, (64, 256))
    importance = np.where(np.arange(256) % 16 == 3, 100.0, 0.01).astype(np.float32)

    def weighted_error(data: NDArray[np.uint8]) -> float:
        return float(np.sum(importance * (dequantize(kind, data, values.shape) - values) ** 2))

    with_it, without = quantize(kind, values, importance), quantize(kind, values)
    assert weighted_error(with_it) < 0.85 * weighted_error(without)
    even = quantize(kind, values, np.ones(256, np.float32))
    difference = dequantize(kind, even, values.shape) - values
    plain = dequantize(kind, without, values.shape) - values
    assert np.sum(difference**2) < 1.1 * np.sum(plain**2)


def test_importance_is_ignored_by_types_that_do_not_search() -> None:
    values, importance = weights(5), np.ones(512, np.float32)
    for kind in (1, 8, 3):
        np.testing.assert_array_equal(quantize(kind, values, importance), quantize(kind, values))


@pytest.mark.parametrize("name", [*searched, "Q4_0", "Q8_0", "MXFP4"])
def test_zeros_and_constants_are_kept(name: str) -> None:
    kind = int(gguf.GGMLQuantizationType[name])
    values = np.zeros((2, 256), np.float32)
    values[1] = 0.5
    back = dequantize(kind, quantize(kind, values), values.shape)
    assert not back[0].any()
    np.testing.assert_allclose(back[1], 0.5, rtol=0.02)


def test_a_type_without_a_quantizer_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantizer"):
        quantize(16, np.zeros((1, 256), np.float32))
