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


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_are_those_of_the_gguf_package(name: str) -> None:
    values = weights(1)
    kind = gguf.GGMLQuantizationType[name]
    expected = gguf.quants.quantize(values, kind)
    assert quantize(int(kind), values).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("name", "simple", "most"), [("Q4_K", "Q4_1", 0.9), ("Q6_K", "Q5_1", 0.5)])
def test_k_types_lose_less_than_simple_ones(name: str, simple: str, most: float) -> None:
    values = weights(2)
    assert error(name, values) < most * error(simple, values)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_0", "Q8_0"])
def test_zeros_and_constants_are_kept(name: str) -> None:
    kind = int(gguf.GGMLQuantizationType[name])
    values = np.zeros((2, 256), np.float32)
    values[1] = 0.5
    back = dequantize(kind, quantize(kind, values), values.shape)
    assert not back[0].any()
    np.testing.assert_allclose(back[1], 0.5, rtol=0.01)


def test_a_type_without_a_quantizer_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantizer"):
        quantize(23, np.zeros((1, 256), np.float32))
