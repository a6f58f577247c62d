"""Tensors that remember what went through them: how large each matrix's inputs were."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class WatchedTensors(dict[str, Floats]):
    """A model's tensors; the reference notes the rows that it multiplies by them."""

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        super().__init__(tensors)
        self.square_sums: dict[str, NDArray[np.float64]] = {}  # by name without ".weight"

    def note(self, name: str, rows: Floats) -> None:
        """Add the squares of a matrix's inputs, (R, inputs)."""
        squares = np.sum(rows.astype(np.float64) ** 2, axis=0)
        known = self.square_sums.get(name)
        self.square_sums[name] = squares if known is None else known + squares
