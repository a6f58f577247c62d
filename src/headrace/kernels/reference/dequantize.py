"""Quantized weights back to float32, by the layouts that GGUF files use.

A block holds 32 weights. The low nibbles of its 16 bytes are weights 0 to 15, the high nibbles are
weights 16 to 31.

    type  bytes  layout                           weight
    Q4_0  18     scale f16, 16 x two nibbles      scale * (nibble - 8)
    Q4_1  20     scale f16, minimum f16, nibbles  scale * nibble + minimum
    Q8_0  34     scale f16, 32 x int8             scale * int8
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

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
    return (_scale(blocks, 0) * (_nibbles(blocks[:, 2:]) - np.float32(8))).reshape(-1)


def dequantize_q4_1(data: Bytes) -> Floats:
    """Unsigned 4-bit weights, one scale and one minimum a block."""
    blocks = data.reshape(-1, 20)
    return (_scale(blocks, 0) * _nibbles(blocks[:, 4:]) + _scale(blocks, 2)).reshape(-1)


def dequantize_q8_0(data: Bytes) -> Floats:
    """Signed 8-bit weights, one scale a block."""
    blocks = data.reshape(-1, 34)
    return (_scale(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)


def _scale(blocks: Bytes, offset: int) -> Floats:
    """The half-precision number at `offset` of each block, as a column (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """(blocks, 16) bytes as (blocks, 32) numbers: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


converters: Mapping[int, Callable[[Bytes], Floats]] = {
    0: dequantize_f32,
    1: dequantize_f16,
    2: dequantize_q4_0,
    3: dequantize_q4_1,
    8: dequantize_q8_0,
    30: dequantize_bf16,
}
