"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467)."""

import numpy as np
from numpy.typing import NDArray


def rms_norm(
    rows: NDArray[np.float32],  # (R, hidden_size)
    weight: NDArray[np.float32],  # (hidden_size,)
    epsilon: float,
) -> NDArray[np.float32]:
    """Each row over the root of its mean square, times `weight`."""
    mean_square = np.mean(np.square(rows, dtype=np.float64), axis=-1, keepdims=True)
    scaled: NDArray[np.float32] = (rows / np.sqrt(mean_square + epsilon) * weight).astype(
        np.float32
    )
    return scaled
