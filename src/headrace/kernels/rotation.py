"""How fast each pair of a head's dimensions turns, after the model's rope scaling.

Pair i of d/2 turns by `position * frequency[i]`, where the frequency starts as theta ** (-2 i / d):

    linear    / factor
    dynamic   theta * ((factor * served / original) - (factor - 1)) ** (d / (d - 2)), once more than
              the original context is served
    yarn      between / factor (pairs that turn less than beta_slow times in the original context)
              and unchanged (more than beta_fast times), a ramp in between
    longrope  / the pair's own divisor, out of the short or the long list by the context served

A file may add divisors of its own (`rope_freqs.weight`, Llama 3.1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.architecture import ArchitectureSpec, RopeScaling

Divisors = Mapping[str, NDArray[np.float32]]
divisors_name = "rope_freqs.weight"
long_divisors_name = "rope_factors_long.weight"
short_divisors_name = "rope_factors_short.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Frequencies of the pairs, and what sines and cosines are multiplied with."""

    frequencies: NDArray[np.float64]  # (rope_dimensions / 2,)
    magnitude: float = 1.0


def rotations_of(
    spec: ArchitectureSpec, divisors: Divisors, context_length: int
) -> tuple[Rotation, ...]:
    """What `LayerSpec.rotation` counts, where so many tokens of context are served."""
    if spec.rope_dimensions == 0:
        return ()
    scaled = _scaled(spec, divisors, context_length)
    if not spec.local_rope_theta:
        return (scaled,)
    return scaled, Rotation(_plain(spec.local_rope_theta, spec.rope_dimensions))


def _plain(theta: float, dimensions: int) -> NDArray[np.float64]:
    pairs = np.arange(dimensions // 2, dtype=np.float64)
    plain: NDArray[np.float64] = theta ** (-2.0 * pairs / dimensions)
    return plain


def _scaled(spec: ArchitectureSpec, divisors: Divisors, context_length: int) -> Rotation:
    plain = _plain(spec.rope_theta, spec.rope_dimensions)
    if divisors_name in divisors:
        plain = plain / divisors[divisors_name].astype(np.float64)
    match spec.rope_scaling:
        case RopeScaling.LINEAR:
            return Rotation(plain / spec.rope_scale, spec.rope_magnitude)
        case RopeScaling.DYNAMIC:
            return Rotation(_plain(_dynamic_theta(spec, context_length), spec.rope_dimensions))
        case RopeScaling.YARN:
            magnitude = spec.rope_magnitude * (0.1 * math.log(spec.rope_scale) + 1.0)
            return Rotation(_yarn(spec, plain), magnitude)
        case RopeScaling.LONGROPE:
            long = context_length > spec.original_context_length
            name = long_divisors_name if long else short_divisors_name
            return Rotation(plain / divisors[name].astype(np.float64), spec.rope_magnitude)


def _dynamic_theta(spec: ArchitectureSpec, context_length: int) -> float:
    dimensions, factor = spec.rope_dimensions, spec.rope_scale
    served = max(context_length, spec.original_context_length)
    growth = factor * served / spec.original_context_length - (factor - 1.0)
    return float(spec.rope_theta * growth ** (dimensions / (dimensions - 2)))


def _yarn(spec: ArchitectureSpec, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    low = _pair_of_turns(spec, spec.yarn_beta_fast)
    high = _pair_of_turns(spec, spec.yarn_beta_slow)
    if spec.yarn_whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, spec.rope_dimensions - 1.0)
    pairs = np.arange(len(plain), dtype=np.float64)
    slow = np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)
    stretched: NDArray[np.float64] = plain / spec.rope_scale * slow + plain * (1.0 - slow)
    return stretched


def _pair_of_turns(spec: ArchitectureSpec, turns: float) -> float:
    """The pair (a fraction too) that turns so often in the original context."""
    length = spec.original_context_length / (turns * 2.0 * math.pi)
    return spec.rope_dimensions * math.log(length) / (2.0 * math.log(spec.rope_theta))
