"""Float32 weights to the quantized blocks of GGUF files; the layouts are in dequantize.py.

The types of 32 weights round to the nearest code under the block's own scale, as llama.cpp does.
The K and IQ4 types search: several scales are tried for each small block, each refined by least
squares, and the one with the smallest error is kept (quantize_search.py). With an importance of the
inputs Q4_0 is searched too, and errors count by it.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference import quantize_blocks
from headrace.kernels.reference.quantize_search import half, inverse, signed_search

# Between two sizes of an e2m1 number: 0, 1, 2, 3, 4, 6, 8, 12.
e2m1_bounds = np.array([0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0], np.float32)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def quantize(type_number: int, values: Floats, importance: Floats | None = None) -> Bytes:
    """The bytes of values whose rows are whole blocks; `type_number` is GGML's, as in files.

    `importance` has a number for each input, (values.shape[-1],), and all of them positive.
    ValueError if there is no quantizer for the type. Cost: tens of passes where it searches."""
    values = np.ascontiguousarray(values, np.float32)
    if type_number in searched or (importance is not None and type_number in weighted):
        convert = searched.get(type_number) or weighted[type_number]
        whole = None if importance is None else np.broadcast_to(importance, values.shape)
        data = convert(values, whole)
    elif type_number in converters:
        data = converters[type_number](values)
    else:
        raise ValueError(f"no quantizer for GGML type {type_number}")
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _f32(values: Floats) -> Bytes:
    return values.reshape(-1).view(np.uint8)


def _f16(values: Floats) -> Bytes:
    limit = np.float32(65504)  # beyond it half precision has only infinity
    return np.clip(values, -limit, limit).astype("<f2").reshape(-1).view(np.uint8)


def _bf16(values: Floats) -> Bytes:
    """To the nearest, ties to even."""
    bits = values.reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)


def _blocks(values: Floats) -> Floats:
    return values.reshape(-1, 32)


def _packed(codes: Bytes) -> Bytes:
    """(blocks, 32) nibbles in 16 bytes: the first half low, the second high."""
    return codes[:, :16] | codes[:, 16:] << np.uint8(4)


def _fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _signed(values: Floats, half_range: int) -> tuple[Floats, Bytes]:
    """Steps and codes around `half_range`: the largest weight gets the code 0, exactly."""
    blocks = _blocks(values)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    steps = largest / np.float32(-half_range)
    shifted = np.trunc(blocks * inverse(steps) + np.float32(half_range + 0.5))
    return steps, np.clip(shifted, 0, 2 * half_range - 1).astype(np.uint8)


def _unsigned(values: Floats, most: int) -> tuple[Floats, Floats, Bytes]:
    """Steps, minimums and codes from 0 to `most`."""
    blocks = _blocks(values)
    least = blocks.min(axis=1, keepdims=True)
    steps = (blocks.max(axis=1, keepdims=True) - least) / np.float32(most)
    codes = np.trunc((blocks - least) * inverse(steps) + np.float32(0.5))
    return steps, least, np.clip(codes, 0, most).astype(np.uint8)


def store_q4_0(steps: Floats, codes: Bytes) -> Bytes:
    """Blocks of step * (code - 8) from steps (blocks, 1) and codes (blocks, 32)."""
    return np.concatenate([half(steps), _packed(codes)], axis=1)


def store_q5_0(steps: Floats, codes: Bytes) -> Bytes:
    """Blocks of step * (code - 16) from steps (blocks, 1) and codes (blocks, 32)."""
    return np.concatenate([half(steps), _fifth_bits(codes), _packed(codes & np.uint8(15))], axis=1)


def store_q8_0(steps: Floats, codes: NDArray[np.int8]) -> Bytes:
    """Blocks of step * code from steps (blocks, 1) and codes (blocks, 32)."""
    return np.concatenate([half(steps), codes.view(np.uint8)], axis=1)


def _q4_0(values: Floats) -> Bytes:
    return store_q4_0(*_signed(values, 8))


def _searched_q4_0(values: Floats, importance: Floats | None) -> Bytes:
    blocks = _blocks(values)
    steps = signed_search(blocks, 8, importance)[:, np.newaxis].astype("<f2").astype(np.float32)
    codes = np.clip(np.rint(blocks * inverse(steps)), -8, 7) + 8
    return store_q4_0(steps, codes.astype(np.uint8))


def _q5_0(values: Floats) -> Bytes:
    return store_q5_0(*_signed(values, 16))


def _q4_1(values: Floats) -> Bytes:
    steps, least, codes = _unsigned(values, 15)
    return np.concatenate([half(steps), half(least), _packed(codes)], axis=1)


def _q5_1(values: Floats) -> Bytes:
    steps, least, codes = _unsigned(values, 31)
    parts = [half(steps), half(least), _fifth_bits(codes), _packed(codes & np.uint8(15))]
    return np.concatenate(parts, axis=1)


def _q8_0(values: Floats) -> Bytes:
    blocks = _blocks(values)
    steps = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * inverse(steps)
    away = np.trunc(np.abs(scaled) + np.float32(0.5))  # halves go away from zero
    codes = np.copysign(away, scaled).astype(np.int8)
    return store_q8_0(steps, codes)


def _mxfp4(values: Floats) -> Bytes:
    """The exponent of the largest weight, and the nearest of eight sizes, the smaller of two."""
    blocks = _blocks(values)
    _, powers = np.frexp(np.abs(blocks).max(axis=1, keepdims=True))
    exponents = np.where(blocks.any(axis=1, keepdims=True), np.clip(powers + 124, 0, 254), 0)
    sizes = np.searchsorted(e2m1_bounds, np.ldexp(np.abs(blocks), 128 - exponents))
    codes = np.where((blocks < 0) & (sizes > 0), sizes + 8, sizes).astype(np.uint8)
    return np.concatenate([exponents.astype(np.uint8), _packed(codes)], axis=1)


converters: Mapping[int, Callable[[Floats], Bytes]] = {
    0: _f32,
    1: _f16,
    2: _q4_0,
    3: _q4_1,
    6: _q5_0,
    7: _q5_1,
    8: _q8_0,
    30: _bf16,
    39: _mxfp4,
}
Searched = Callable[[Floats, Floats | None], Bytes]
searched: Mapping[int, Searched] = {
    10: quantize_blocks.q2_k,
    11: quantize_blocks.q3_k,
    12: quantize_blocks.q4_k,
    13: quantize_blocks.q5_k,
    14: quantize_blocks.q6_k,
    20: quantize_blocks.iq4_nl,
    23: quantize_blocks.iq4_xs,
}
weighted: Mapping[int, Searched] = {2: _searched_q4_0}
