"""The gated activation of the feed-forward layer (Shazeer 2020, arXiv 2002.05202)."""

import numpy as np
from numpy.typing import NDArray


def swiglu(
    gate: NDArray[np.float32],  # (R, ffn_size)
    up: NDArray[np.float32],  # (R, ffn_size)
) -> NDArray[np.float32]:
    """`gate * sigmoid(gate) * up`, safe for large negative gates."""
    wide = gate.astype(np.float64)
    sigmoid = np.exp(-np.logaddexp(0.0, -wide))
    return (wide * sigmoid * up).astype(np.float32)
