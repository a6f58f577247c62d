"""A tensor of a model file: name, type, shape and its bytes, still where the file maps them.

Bytes that are stored in another way (another order, another quantization) are made when they are
asked for and kept by nobody, so that a model of any size can be read tensor by tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class TensorType(IntEnum):
    """GGML's type numbers, as they stand in files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


class BlockLayout(NamedTuple):
    """How many values one block of a type holds, in how many bytes."""

    values: int
    bytes: int


# Every type whose size is known, so that any file can be checked whole. What can be computed with
# is the runner's to say: it refuses the others by name.
block_layouts: dict[TensorType, BlockLayout] = {
    TensorType.F32: BlockLayout(1, 4),
    TensorType.F16: BlockLayout(1, 2),
    TensorType.BF16: BlockLayout(1, 2),
    TensorType.F64: BlockLayout(1, 8),
    TensorType.I8: BlockLayout(1, 1),
    TensorType.I16: BlockLayout(1, 2),
    TensorType.I32: BlockLayout(1, 4),
    TensorType.I64: BlockLayout(1, 8),
    TensorType.Q4_0: BlockLayout(32, 18),
    TensorType.Q4_1: BlockLayout(32, 20),
    TensorType.Q5_0: BlockLayout(32, 22),
    TensorType.Q5_1: BlockLayout(32, 24),
    TensorType.Q8_0: BlockLayout(32, 34),
    TensorType.Q8_1: BlockLayout(32, 36),
    TensorType.IQ4_NL: BlockLayout(32, 18),
    TensorType.MXFP4: BlockLayout(32, 17),
    TensorType.NVFP4: BlockLayout(64, 36),
    TensorType.Q2_K: BlockLayout(256, 84),
    TensorType.Q3_K: BlockLayout(256, 110),
    TensorType.Q4_K: BlockLayout(256, 144),
    TensorType.Q5_K: BlockLayout(256, 176),
    TensorType.Q6_K: BlockLayout(256, 210),
    TensorType.Q8_K: BlockLayout(256, 292),
    TensorType.IQ1_S: BlockLayout(256, 50),
    TensorType.IQ1_M: BlockLayout(256, 56),
    TensorType.IQ2_XXS: BlockLayout(256, 66),
    TensorType.IQ2_XS: BlockLayout(256, 74),
    TensorType.IQ2_S: BlockLayout(256, 82),
    TensorType.IQ3_XXS: BlockLayout(256, 98),
    TensorType.IQ3_S: BlockLayout(256, 110),
    TensorType.IQ4_XS: BlockLayout(256, 136),
    TensorType.TQ1_0: BlockLayout(256, 54),
    TensorType.TQ2_0: BlockLayout(256, 66),
}


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One weight; the last dimension is contiguous: a matrix is (outputs, inputs)."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    source: Bytes | Callable[[], Bytes]  # (byte_count,) read-only; or what makes it

    @property
    def data(self) -> Bytes:
        """Its bytes, (byte_count,); made anew at each call where the file stores them otherwise."""
        return self.source() if callable(self.source) else self.source

    @property
    def value_count(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of what one index of the first dimension holds."""
        return bytes_of(self.type, prod(self.shape[1:]))

    @property
    def byte_count(self) -> int:
        """Bytes of its data; nothing is read."""
        return bytes_of(self.type, self.value_count)


def bytes_of(tensor_type: TensorType, value_count: int) -> int:
    """Bytes of so many values in whole blocks."""
    layout = block_layouts[tensor_type]
    return value_count // layout.values * layout.bytes
