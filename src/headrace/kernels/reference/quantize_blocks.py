"""Blocks of 256 weights from float32: scales searched by least squares; see quantize.py.

Each takes values whose count is a multiple of 256 and gives (blocks, bytes). A scale is searched
with real numbers first; then the scales of a block are rounded to their own small integers, and
the codes are taken anew under the rounded ones, so that what is stored is what was minimized.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

trials = 20  # scales that are tried for each small block
tiny = np.float32(1e-15)


def q4_k(values: Floats) -> Bytes:
    """4-bit codes, a 6-bit scale and minimum for 32 weights."""
    parts = values.reshape(-1, 8, 32)
    steps, floors = _affine_search(parts)
    step, step_codes = _six_bits(steps)
    floor, floor_codes = _six_bits(floors)
    scale = (step * step_codes)[:, :, np.newaxis]
    offset = (floor * floor_codes)[:, :, np.newaxis]
    codes = np.clip(np.rint((parts + offset) * _inverse(scale)), 0, 15).astype(np.uint8)
    pairs = codes.reshape(-1, 4, 2, 32)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)
    return np.concatenate(
        [
            *(_half(step), _half(floor)),
            *(_pack_six_bits(step_codes, floor_codes), packed.reshape(-1, 128)),
        ],
        axis=1,
    )


def q6_k(values: Floats) -> Bytes:
    """6-bit codes around 32, an 8-bit scale for 16 weights."""
    parts = values.reshape(-1, 16, 16)
    steps = _signed_search(parts)
    largest = np.take_along_axis(steps, np.abs(steps).argmax(axis=1, keepdims=True), axis=1)
    step = (largest / np.float32(-128)).astype("<f2").astype(np.float32)
    scales = np.clip(np.rint(steps * _inverse(step)), -128, 127)
    exact = (step * scales)[:, :, np.newaxis]
    codes = (np.clip(np.rint(parts * _inverse(exact)), -32, 31) + 32).astype(np.uint8)
    halves = codes.reshape(-1, 2, 2, 64) & np.uint8(15)
    low = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    quarters = codes.reshape(-1, 2, 4, 32) >> np.uint8(4)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = np.bitwise_or.reduce(quarters << shifts, axis=2)
    return np.concatenate(
        [
            *(low.reshape(-1, 128), high.reshape(-1, 64)),
            *(scales.astype(np.int8).view(np.uint8), _half(step)),
        ],
        axis=1,
    )


def _affine_search(parts: Floats) -> tuple[Floats, Floats]:
    """Steps and floors (both at least 0) of weight = step * code - floor, codes 0 to 15."""
    weights = np.sqrt(np.mean(parts**2, axis=2, keepdims=True)) + np.abs(parts)
    least = np.minimum(parts.min(axis=2, keepdims=True), 0)
    span = np.maximum(parts.max(axis=2, keepdims=True) - least, tiny)
    sum_w = weights.sum(axis=2) + tiny
    sum_x = (weights * parts).sum(axis=2)
    best_step = (span / 15)[:, :, 0]
    best_floor = -least[:, :, 0]
    best_error = np.full(best_step.shape, np.inf, np.float32)
    for trial in range(trials + 1):
        levels = np.float32(14 + 2 * trial / trials)
        codes = np.clip(np.rint((parts - least) * (levels / span)), 0, 15)
        weighted = weights * codes
        sum_c, sum_cc = weighted.sum(axis=2), (weighted * codes).sum(axis=2)
        sum_cx = (weighted * parts).sum(axis=2)
        determinant = sum_w * sum_cc - sum_c**2
        solved = determinant > 0
        divisor = np.where(solved, determinant, 1)
        step = np.where(solved, (sum_w * sum_cx - sum_x * sum_c) / divisor, best_step)
        floor = np.where(solved, (sum_c * sum_cx - sum_cc * sum_x) / divisor, best_floor)
        raised = floor < 0  # a floor cannot be stored above 0: fit the step alone
        step = np.where(raised, sum_cx / np.maximum(sum_cc, tiny), step)
        floor = np.maximum(floor, 0)
        difference = step[:, :, np.newaxis] * codes - floor[:, :, np.newaxis] - parts
        error = (weights * difference**2).sum(axis=2)
        better = (error < best_error) & (step > 0)
        best_error = np.where(better, error, best_error)
        best_step = np.where(better, step, best_step)
        best_floor = np.where(better, floor, best_floor)
    return best_step.astype(np.float32), best_floor.astype(np.float32)


def _signed_search(parts: Floats) -> Floats:
    """Steps of weight = step * code, codes -32 to 31; a step has the sign that fits better."""
    weights = parts**2
    place = np.abs(parts).argmax(axis=2)[:, :, np.newaxis]
    largest = np.take_along_axis(parts, place, axis=2)
    best_step = np.zeros(parts.shape[:2], np.float32)
    best_gain = np.zeros(parts.shape[:2], np.float32)
    for trial in range(trials + 1):
        levels = np.float32(-31 - 2 * trial / trials)
        codes = np.clip(np.rint(parts * (levels * _inverse(largest))), -32, 31)
        weighted = weights * codes
        sum_cx, sum_cc = (weighted * parts).sum(axis=2), (weighted * codes).sum(axis=2)
        gain = sum_cx**2 / np.maximum(sum_cc, np.float32(1e-30))
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_step = np.where(better, sum_cx / np.maximum(sum_cc, np.float32(1e-30)), best_step)
    return best_step.astype(np.float32)


def _six_bits(numbers: Floats) -> tuple[Floats, Floats]:
    """A factor for each block and codes 0 to 63 of its eight numbers."""
    factor = (numbers.max(axis=1, keepdims=True) / np.float32(63)).astype("<f2").astype(np.float32)
    return factor, np.clip(np.rint(numbers * _inverse(factor)), 0, 63).astype(np.float32)


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


def _inverse(steps: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(steps == 0, np.float32(0), 1 / steps).astype(np.float32)


def _half(numbers: Floats) -> Bytes:
    return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8)
