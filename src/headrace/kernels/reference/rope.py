"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in both pairings in use.

Pair i of a head turns by `position / scale * theta ** (-2 i / rotated dimensions)`. The pairs are
(0, 1), (2, 3), ... in the "adjacent" style and (0, d/2), (1, d/2 + 1), ... in the "halves" style;
dimensions past the rotated ones stay as they are.
"""

import numpy as np
from numpy.typing import NDArray


def rotate(
    heads: NDArray[np.float32],  # (R, num_heads, head_dim)
    positions: NDArray[np.int64],  # (R,)
    *,
    style: str,  # "adjacent" or "halves"
    dimensions: int,
    theta: float,
    scale: float = 1.0,
) -> NDArray[np.float32]:
    """A rotated copy of queries or keys."""
    pairs = np.arange(dimensions // 2, dtype=np.float64)
    frequencies = theta ** (-2.0 * pairs / dimensions)
    angles = (positions[:, None] / scale) * frequencies  # (R, dimensions / 2)
    return turn(heads, angles, style=style)


def turn(
    heads: NDArray[np.float32],  # (R, num_heads, head_dim)
    angles: NDArray[np.float64],  # (R, rotated dimensions / 2)
    *,
    style: str,  # "adjacent" or "halves"
    magnitude: float = 1.0,
) -> NDArray[np.float32]:
    """A copy turned by these angles, the turned dimensions times `magnitude`."""
    dimensions = 2 * angles.shape[1]
    cosine = magnitude * np.cos(angles)[:, None, :]
    sine = magnitude * np.sin(angles)[:, None, :]
    if style == "adjacent":
        first, second = slice(0, dimensions, 2), slice(1, dimensions, 2)
    elif style == "halves":
        first, second = slice(0, dimensions // 2), slice(dimensions // 2, dimensions)
    else:
        raise ValueError(f"unknown rope style {style!r}; use 'adjacent' or 'halves'")
    rotated = heads.copy()
    rotated[..., first] = heads[..., first] * cosine - heads[..., second] * sine
    rotated[..., second] = heads[..., first] * sine + heads[..., second] * cosine
    return rotated
