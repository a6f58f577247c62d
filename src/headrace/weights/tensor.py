"""A tensor of a model file: name, type, shape and its bytes, still where the file maps them."""

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TensorType(IntEnum):
    """GGML's type numbers, as they stand in files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39


class BlockLayout(NamedTuple):
    """How many values one block of a type holds, in how many bytes."""

    values: int
    bytes: int


block_layouts: dict[TensorType, BlockLayout] = {
    TensorType.F32: BlockLayout(1, 4),
    TensorType.F16: BlockLayout(1, 2),
    TensorType.BF16: BlockLayout(1, 2),
    TensorType.Q4_0: BlockLayout(32, 18),
    TensorType.Q4_1: BlockLayout(32, 20),
    TensorType.Q8_0: BlockLayout(32, 34),
}


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One weight; the last dimension is contiguous: a matrix is (outputs, inputs)."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # (byte_count,) read-only, into the mapped file

    @property
    def value_count(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)
