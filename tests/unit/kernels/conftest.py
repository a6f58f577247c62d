"""The instruction sets that this machine can run, and quantized weights by the `gguf` package."""

import platform
from collections.abc import Callable

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native

expected_names = {"portable": "portable"} | (
    {"dotprod": "neon-dotprod", "i8mm": "neon-i8mm"}
    if platform.machine() in {"aarch64", "arm64"}
    else {"avx2": "avx2", "avxvnni": "avx-vnni"}
    | dict.fromkeys(("avx512-products", "avx512-sums"), "avx512-vnni")
)


@pytest.fixture(params=list(expected_names))
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that has kernels here; skipped where the CPU lacks it."""
    name: str = request.param
    if _native.kernel_name(name) != expected_names[name]:
        pytest.skip(f"this CPU does not run {name}")
    return name


@pytest.fixture
def vector_isas() -> list[str]:
    """Those of this CPU that are not portable; with 16 bits, or weights of 4, all find the same."""
    return [
        name
        for name, kernels in expected_names.items()
        if name != "portable" and _native.kernel_name(name) == kernels
    ]


Floats = NDArray[np.float32]
Quantize = Callable[[Floats, str], tuple[int, NDArray[np.uint8], Floats]]


@pytest.fixture
def quantize() -> Quantize:
    """(weights, type name) -> (GGML type number, file bytes, the values that the bytes mean)."""

    def convert(weights: Floats, type_name: str) -> tuple[int, NDArray[np.uint8], Floats]:
        kind = gguf.GGMLQuantizationType[type_name]
        data = np.ascontiguousarray(gguf.quants.quantize(weights, kind))
        values = gguf.quants.dequantize(data, kind).reshape(weights.shape)
        return int(kind), data.view(np.uint8).reshape(-1), values

    return convert
