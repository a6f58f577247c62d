"""Quantized weights back to float32, by the layouts that GGUF files use.

A block holds 32 weights. The low nibbles of its 16 bytes are weights 0 to 15, the high nibbles are
weights 16 to 31.

    type  bytes  layout                           weight
    Q4_0  18     scale f16, 16 x two nibbles      scale * (nibble - 8)
    Q4_1  20     scale f16, minimum f16, nibbles  scale * nibble + minimum
    Q5_0  22     scale f16, 32 fifth bits, nibbles      scale * (code - 16)
    Q5_1  24     scale f16, minimum f16, bits, nibbles  scale * code + minimum
    Q8_0  34     scale f16, 32 x int8             scale * int8

The K types, IQ4 and MXFP4 are in dequantize_blocks.py.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference import dequantize_blocks
from headrace.kernels.reference.dequantize_blocks import fields, half, nibbles

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

block_values = 32


def dequantize(type_number: int, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """The float32 values of a tensor from its bytes; `type_number` is GGML's, as in files.

    ValueError if the type has no reference here or the byte count does not fit the shape."""
    convert = converters.get(type_number)
    if convert is None:
        raise ValueError(f"no reference dequantizer for GGML type {type_number}")
    return convert(np.ascontiguousarray(data)).reshape(shape)


def dequantize_f32(data: Bytes) -> Floats:
    """Little-endian float32, as it is."""
    return data.view("<f4").astype(np.float32)


def dequantize_f16(data: Bytes) -> Floats:
    """IEEE half precision, widened exactly."""
    return data.view("<f2").astype(np.float32)


def dequantize_bf16(data: Bytes) -> Floats:
    """The upper half of a float32; the lower half is zero."""
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def dequantize_q4_0(data: Bytes) -> Floats:
    """Signed 4-bit weights around 8, one scale a block."""
    blocks = data.reshape(-1, 18)
    return (half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))).reshape(
        -1
    )


def dequantize_q4_1(data: Bytes) -> Floats:
    """Unsigned 4-bit weights, one scale and one minimum a block."""
    blocks = data.reshape(-1, 20)
    return (half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)).reshape(
        -1
    )


def dequantize_q8_0(data: Bytes) -> Floats:
    """Signed 8-bit weights, one scale a block."""
    blocks = data.reshape(-1, 34)
    return (half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)


def _fives(bits: Bytes, packed: Bytes) -> Floats:
    """(blocks, 32) numbers of five bits, the fifth ones from four bytes, lowest first."""
    return (nibbles(packed) | fields(bits, 1, 1) << 4).astype(np.float32)


def dequantize_q5_0(data: Bytes) -> Floats:
    """Signed 5-bit weights around 16, one scale a block."""
    blocks = data.reshape(-1, 22)
    codes = _fives(blocks[:, 2:6], blocks[:, 6:])
    return (half(blocks, 0) * (codes - np.float32(16))).reshape(-1)


def dequantize_q5_1(data: Bytes) -> Floats:
    """Unsigned 5-bit weights, one scale and one minimum a block."""
    blocks = data.reshape(-1, 24)
    return (half(blocks, 0) * _fives(blocks[:, 4:8], blocks[:, 8:]) + half(blocks, 2)).reshape(-1)


def _blockwise(convert: Callable[[Bytes], Floats], block_bytes: int) -> Callable[[Bytes], Floats]:
    """A converter of whole tensors from one of (blocks, bytes)."""

    def dequantize_all(data: Bytes) -> Floats:
        return convert(data.reshape(-1, block_bytes)).reshape(-1)

    return dequantize_all


converters: Mapping[int, Callable[[Bytes], Floats]] = {
    0: dequantize_f32,
    1: dequantize_f16,
    2: dequantize_q4_0,
    3: dequantize_q4_1,
    6: dequantize_q5_0,
    7: dequantize_q5_1,
    8: dequantize_q8_0,
    10: _blockwise(dequantize_blocks.q2_k, 84),
    11: _blockwise(dequantize_blocks.q3_k, 110),
    12: _blockwise(dequantize_blocks.q4_k, 144),
    13: _blockwise(dequantize_blocks.q5_k, 176),
    14: _blockwise(dequantize_blocks.q6_k, 210),
    20: _blockwise(dequantize_blocks.iq4_nl, 18),
    23: _blockwise(dequantize_blocks.iq4_xs, 136),
    30: dequantize_bf16,
    39: _blockwise(dequantize_blocks.mxfp4, 17),
}
