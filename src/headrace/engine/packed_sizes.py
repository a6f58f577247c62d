"""How many bytes a matrix takes as the runner keeps it: tiles of 16 outputs.

The layout is csrc/kernels/tile_layout.hpp's.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.weights.tensor import TensorType, bytes_of

tile_columns = 16
group_values = 32
coded_groups = 8  # groups that share their factors
line_bytes = 64
huge_page_bytes = 2 << 20


class TileShape(NamedTuple):
    """How a tile keeps a group of 32 inputs of its 16 outputs."""

    quant_bytes: int
    scale_bytes: int
    factor_bytes: int = 0  # of eight groups whose scales are codes


_nibbles_with_scales = TileShape(256, 32)
_bytes_with_scales = TileShape(512, 32)
_bytes_with_floats = TileShape(512, 128)
_nibbles_with_floats = TileShape(256, 256)
tile_shapes: Mapping[TensorType, TileShape] = {
    TensorType.Q4_0: _nibbles_with_scales,
    TensorType.Q4_1: TileShape(256, 64),
    TensorType.Q5_0: _bytes_with_scales,
    TensorType.Q5_1: _bytes_with_floats,
    TensorType.Q8_0: _bytes_with_scales,
    TensorType.Q2_K: _nibbles_with_floats,
    TensorType.Q3_K: _nibbles_with_floats,
    TensorType.Q4_K: TileShape(256, 32, 64),
    TensorType.Q5_K: TileShape(512, 32, 64),
    TensorType.Q6_K: TileShape(512, 32, 32),
    TensorType.IQ4_NL: _bytes_with_scales,
    TensorType.IQ4_XS: _bytes_with_floats,
    TensorType.MXFP4: _bytes_with_floats,
}
nibble_types = frozenset(
    kind
    for kind, shape in tile_shapes.items()
    if shape.quant_bytes == _nibbles_with_scales.quant_bytes
)


def tiles_bytes(kind: TensorType, outputs: int, inputs: int) -> int:
    """Bytes of a matrix as the runner keeps it."""
    tiles = -(-outputs // tile_columns)
    if kind not in tile_shapes:
        return tiles * lines_bytes(bytes_of(kind, inputs) * tile_columns)
    shape = tile_shapes[kind]
    groups = inputs // group_values
    scales = groups * shape.scale_bytes
    if shape.factor_bytes:
        scales += (groups // coded_groups + 1) * shape.factor_bytes
    return tiles * lines_bytes(lines_bytes(scales) + groups * shape.quant_bytes)


def buffer_bytes(byte_count: int) -> int:
    """What an array takes: large ones are made of huge pages (csrc/base/buffer.hpp)."""
    if byte_count < huge_page_bytes:
        return byte_count
    return -(-byte_count // huge_page_bytes) * huge_page_bytes


def lines_bytes(byte_count: int) -> int:
    """So many bytes in whole cache lines."""
    return -(-byte_count // line_bytes) * line_bytes
