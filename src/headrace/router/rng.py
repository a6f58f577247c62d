"""Where a router draws from: a generator of the system, or one with a seed in tests."""

from typing import Protocol


class Rng(Protocol):
    """Where random numbers come from."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...
