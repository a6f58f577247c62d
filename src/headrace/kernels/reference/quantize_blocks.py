"""Blocks of 256 weights, or of a table's values, from float32; see quantize.py.

Each takes values whose count is a multiple of the block's, and their importance or None, and gives
(blocks, bytes). A scale is searched with real numbers first; then the scales of a block are rounded
to their own small integers, and the codes are taken anew under the rounded ones, so that what is
stored is what was minimized. The layouts are in dequantize_blocks.py.
"""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference.quantize_search import (
    affine_search,
    dense_codes,
    dense_search,
    half,
    inverse,
    signed_search,
)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def q2_k(values: Floats, importance: Floats | None) -> Bytes:
    """2-bit codes, a 4-bit scale and minimum for 16 weights."""
    parts = values.reshape(-1, 16, 16)
    steps, floors = affine_search(parts, 3, (-0.5, 1.0), importance)
    step, step_codes = _factor_and_codes(steps, 15)
    floor, floor_codes = _factor_and_codes(floors, 15)
    codes = _affine_codes(parts, step * step_codes, floor * floor_codes, 3)
    scales = step_codes.astype(np.uint8) | floor_codes.astype(np.uint8) << np.uint8(4)
    packed = _pack_fields(codes.reshape(-1, 256), 32, 2)
    return np.concatenate([scales, packed, half(step), half(floor)], axis=1)


def q3_k(values: Floats, importance: Floats | None) -> Bytes:
    """3-bit codes around 4, a 6-bit scale around 32 for 16 weights."""
    parts = values.reshape(-1, 16, 16)
    step, scales = _signed_factor_and_codes(signed_search(parts, 4, importance), 32)
    codes = _signed_codes(parts, step * scales, 4).reshape(-1, 256)
    six = (scales + 32).astype(np.uint8)
    low = six[:, :8] & np.uint8(15) | (six[:, 8:] & np.uint8(15)) << np.uint8(4)
    return np.concatenate(
        [
            *(_pack_fields(codes >> np.uint8(2), 32, 1), _pack_fields(codes & np.uint8(3), 32, 2)),
            *(low, _pack_fields(six >> np.uint8(4), 4, 2), half(step)),
        ],
        axis=1,
    )


def q4_k(values: Floats, importance: Floats | None) -> Bytes:
    """4-bit codes, a 6-bit scale and minimum for 32 weights."""
    header, codes = _six_bit_affine(values, 15, (-1.0, 1.0), importance)
    return np.concatenate([header, _pack_fields(codes, 32, 4)], axis=1)


def q5_k(values: Floats, importance: Floats | None) -> Bytes:
    """5-bit codes, a 6-bit scale and minimum for 32 weights."""
    header, codes = _six_bit_affine(values, 31, (-0.5, 1.0), importance)
    fifths = _pack_fields(codes >> np.uint8(4), 32, 1)
    return np.concatenate([header, fifths, _pack_fields(codes & np.uint8(15), 32, 4)], axis=1)


def q6_k(values: Floats, importance: Floats | None) -> Bytes:
    """6-bit codes around 32, an 8-bit scale for 16 weights."""
    parts = values.reshape(-1, 16, 16)
    step, scales = _signed_factor_and_codes(signed_search(parts, 32, importance), 128)
    codes = _signed_codes(parts, step * scales, 32).reshape(-1, 256)
    return np.concatenate(
        [
            *(_pack_fields(codes & np.uint8(15), 64, 4), _pack_fields(codes >> np.uint8(4), 32, 2)),
            *(scales.astype(np.int8).view(np.uint8), half(step)),
        ],
        axis=1,
    )


def iq4_nl(values: Floats, importance: Floats | None) -> Bytes:
    """4-bit codes of unevenly spaced values, one scale for 32 weights."""
    parts = values.reshape(-1, 32)
    steps = _rounded(dense_search(parts, importance)[:, np.newaxis])
    codes = dense_codes(parts * inverse(steps))
    return np.concatenate([half(steps), _pack_fields(codes, 16, 4)], axis=1)


def iq4_xs(values: Floats, importance: Floats | None) -> Bytes:
    """4-bit codes of unevenly spaced values, a 6-bit scale around 32 for 32 weights."""
    parts = values.reshape(-1, 8, 32)
    step, scales = _signed_factor_and_codes(dense_search(parts, importance), 32)
    exact = (step * scales)[:, :, np.newaxis]
    codes = dense_codes(parts * inverse(exact)).reshape(-1, 256)
    six = (scales + 32).astype(np.uint8)
    low = six[:, 0::2] & np.uint8(15) | (six[:, 1::2] & np.uint8(15)) << np.uint8(4)
    shifts = np.array([0, 2, 4, 6], np.uint8)
    high = np.bitwise_or.reduce((six >> np.uint8(4)).reshape(-1, 2, 4) << shifts, axis=2)
    return np.concatenate([half(step), high, low, _pack_fields(codes, 16, 4)], axis=1)


def _six_bit_affine(
    values: Floats, most: int, spread: tuple[float, float], importance: Floats | None
) -> tuple[Bytes, Bytes]:
    """Sixteen bytes of factors, scales and minimums, and 256 codes from 0 to `most`."""
    parts = values.reshape(-1, 8, 32)
    steps, floors = affine_search(parts, most, spread, importance)
    step, step_codes = _factor_and_codes(steps, 63)
    floor, floor_codes = _factor_and_codes(floors, 63)
    codes = _affine_codes(parts, step * step_codes, floor * floor_codes, most)
    six = _pack_six_bits(step_codes, floor_codes)
    return np.concatenate([half(step), half(floor), six], axis=1), codes.reshape(-1, 256)


def _affine_codes(parts: Floats, steps: Floats, floors: Floats, most: int) -> Bytes:
    shifted = (parts + floors[:, :, np.newaxis]) * inverse(steps)[:, :, np.newaxis]
    return np.asarray(np.clip(np.rint(shifted), 0, most), np.uint8)


def _signed_codes(parts: Floats, steps: Floats, half_range: int) -> Bytes:
    scaled = np.rint(parts * inverse(steps)[:, :, np.newaxis])
    return np.asarray(np.clip(scaled, -half_range, half_range - 1) + half_range, np.uint8)


def _factor_and_codes(numbers: Floats, most: int) -> tuple[Floats, Floats]:
    """A factor for each block and codes 0 to `most` of its numbers."""
    factor = _rounded(numbers.max(axis=1, keepdims=True) / np.float32(most))
    return factor, np.clip(np.rint(numbers * inverse(factor)), 0, most).astype(np.float32)


def _signed_factor_and_codes(numbers: Floats, half_range: int) -> tuple[Floats, Floats]:
    """A factor for each block and codes -half_range to half_range - 1; the largest is exact."""
    place = np.abs(numbers).argmax(axis=1, keepdims=True)
    largest = np.take_along_axis(numbers, place, axis=1)
    factor = _rounded(largest / np.float32(-half_range))
    codes = np.clip(np.rint(numbers * inverse(factor)), -half_range, half_range - 1)
    return factor, codes.astype(np.float32)


def _pack_six_bits(steps: Floats, floors: Floats) -> Bytes:
    """Twelve bytes of eight scales and minimums; the last four's upper bits in the first four."""
    scale, minimum = steps.astype(np.uint8), floors.astype(np.uint8)
    return np.concatenate(
        [
            scale[:, :4] | (scale[:, 4:] >> 4) << np.uint8(6),
            minimum[:, :4] | (minimum[:, 4:] >> 4) << np.uint8(6),
            scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << np.uint8(4),
        ],
        axis=1,
    )


def _pack_fields(codes: Bytes, run: int, bits: int) -> Bytes:
    """What `dequantize_blocks.fields` takes apart: in each run of bytes the lowest fields first."""
    count = 8 // bits
    runs = codes.reshape(len(codes), -1, count, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    packed: Bytes = np.bitwise_or.reduce(runs << shifts, axis=2)
    return packed.reshape(len(codes), -1)


def _rounded(numbers: Floats) -> Floats:
    """To half precision and back: what will be stored."""
    return numbers.astype("<f2").astype(np.float32)
