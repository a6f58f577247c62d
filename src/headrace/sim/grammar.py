"""A constraint that allows every token: a grammar's stand-in where only its life matters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

vocabulary_words = 8


class Anything:
    """No rule at all."""

    def mask_after(self, output_token_ids: Sequence[int]) -> NDArray[np.uint32]:
        """Every bit set."""
        return np.full(vocabulary_words, 0xFFFFFFFF, np.uint32)

    def allowed_count(self, output_token_ids: Sequence[int], guesses: Sequence[int]) -> int:
        """All of them."""
        return len(guesses)

    def forced_after(self, output_token_ids: Sequence[int], count: int) -> list[int]:
        """Nothing is forced."""
        return []

    def fresh(self) -> "Anything":
        """Itself: it remembers nothing."""
        return self
