"""Scales of small blocks by search: several are tried, each refined by least squares, one is kept.

What is minimized is the sum of weight * error squared. Without an importance the weights grow with
the numbers themselves; with one, a number's weight is its input's importance times
sqrt(mean square of its block + its own square), which keeps large numbers from being sacrificed.
Parts are (..., length); steps and floors have one number for each part.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference.dequantize_blocks import dense_values

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

trials = 20  # scales that are tried for each part
tiny = np.float32(1e-15)
smallest = np.float32(1e-30)
_middles = (dense_values[1:] + dense_values[:-1]) / 2
_nearest_dense = np.searchsorted(_middles, np.arange(-256, 256) / 2 + 0.25).astype(np.uint8)


def error_weights(parts: Floats, importance: Floats) -> Floats:
    """The weight of each error; the importance has as many numbers, in the same order."""
    mean_square = np.mean(parts**2, axis=-1, keepdims=True)
    weights = importance.reshape(parts.shape) * np.sqrt(mean_square + parts**2)
    return np.asarray(weights, np.float32)


def affine_search(
    parts: Floats, most: int, spread: tuple[float, float], importance: Floats | None
) -> tuple[Floats, Floats]:
    """Steps and floors (both at least 0) of number = step * code - floor, codes 0 to `most`.

    Spans of `most` plus anything within `spread` codes are tried."""
    if importance is None:
        weights = np.sqrt(np.mean(parts**2, axis=-1, keepdims=True)) + np.abs(parts)
    else:
        weights = error_weights(parts, importance)
    least = np.minimum(parts.min(axis=-1, keepdims=True), 0)
    span = np.maximum(parts.max(axis=-1, keepdims=True) - least, tiny)
    sum_w = weights.sum(axis=-1) + tiny
    sum_x = (weights * parts).sum(axis=-1)
    best_step = (span / np.float32(most))[..., 0]
    best_floor = -least[..., 0]
    best_error = np.full(best_step.shape, np.inf, np.float32)
    for levels in most + np.linspace(*spread, trials + 1, dtype=np.float32):
        codes = np.clip(np.rint((parts - least) * (levels / span)), 0, most)
        weighted = weights * codes
        sum_c, sum_cc = weighted.sum(axis=-1), (weighted * codes).sum(axis=-1)
        sum_cx = (weighted * parts).sum(axis=-1)
        determinant = sum_w * sum_cc - sum_c**2
        solved = determinant > 0
        divisor = np.where(solved, determinant, 1)
        step = np.where(solved, (sum_w * sum_cx - sum_x * sum_c) / divisor, best_step)
        floor = np.where(solved, (sum_c * sum_cx - sum_cc * sum_x) / divisor, best_floor)
        raised = floor < 0  # a floor cannot be stored above 0: fit the step alone
        step = np.where(raised, sum_cx / np.maximum(sum_cc, tiny), step)
        floor = np.maximum(floor, 0)
        difference = step[..., np.newaxis] * codes - floor[..., np.newaxis] - parts
        error = (weights * difference**2).sum(axis=-1)
        better = (error < best_error) & (step > 0)
        best_error = np.where(better, error, best_error)
        best_step = np.where(better, step, best_step)
        best_floor = np.where(better, floor, best_floor)
    return best_step.astype(np.float32), best_floor.astype(np.float32)


def signed_search(parts: Floats, half_range: int, importance: Floats | None) -> Floats:
    """Steps of number = step * code, codes -half_range to half_range - 1, of either sign."""
    highest = np.float32(half_range - 1)
    spans = -highest - np.linspace(0, 2, trials + 1, dtype=np.float32)
    to_unit = inverse(_largest(parts))
    tried = (np.clip(np.rint(parts * (span * to_unit)), -highest - 1, highest) for span in spans)
    return _best_steps(parts, tried, importance)


def dense_search(parts: Floats, importance: Floats | None) -> Floats:
    """Steps of number = step * one of the dense values."""
    firsts = dense_values[0] + np.linspace(-7, 7, trials + 1, dtype=np.float32)
    to_unit = inverse(_largest(parts))
    tried = (dense_values[dense_codes(parts * (first * to_unit))] for first in firsts)
    return _best_steps(parts, tried, importance)


def _largest(parts: Floats) -> Floats:
    """The number of the largest size of each part, with its sign."""
    place = np.abs(parts).argmax(axis=-1)[..., np.newaxis]
    return np.take_along_axis(parts, place, axis=-1)


def _best_steps(parts: Floats, tried: Iterable[Floats], importance: Floats | None) -> Floats:
    """The least-squares step of the values that fit best."""
    weights = parts**2 if importance is None else error_weights(parts, importance)
    best_step = np.zeros(parts.shape[:-1], np.float32)
    best_gain = np.zeros(parts.shape[:-1], np.float32)
    for values in tried:
        weighted = weights * values
        sum_vx = (weighted * parts).sum(axis=-1)
        sum_vv = np.maximum((weighted * values).sum(axis=-1), smallest)
        gain = sum_vx**2 / sum_vv
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_step = np.where(better, sum_vx / sum_vv, best_step)
    return best_step.astype(np.float32)


def dense_codes(scaled: Floats) -> Bytes:
    """The index of the nearest of the dense values, whose middles are whole or half numbers."""
    place = np.clip(np.floor(scaled * 2), -256, 255).astype(np.int32) + 256
    return _nearest_dense[place]


def inverse(steps: Floats) -> Floats:
    """1 / step, and 0 where the step is 0."""
    with np.errstate(divide="ignore"):
        return np.where(steps == 0, np.float32(0), 1 / steps).astype(np.float32)


def half(numbers: Floats) -> Bytes:
    """A column of numbers as half precision, (blocks, 2) bytes."""
    return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8)
