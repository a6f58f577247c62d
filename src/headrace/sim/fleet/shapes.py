"""What a stream's requests look like, drawn: how long they are, and which of several.

Simulations draw in C++ (`machinery`, `csrc/sim/shapes.hpp`), the same numbers to the last bit.
"""

import random
from typing import Protocol

from headrace.sim.fleet.lengths import Length


class Shapes(Protocol):
    """The draws of one stream, in Python or C++."""

    def fresh_tokens(self) -> int:
        """How long a prompt is, without what it shares."""
        ...

    def output_tokens(self) -> int:
        """How long an answer is."""
        ...

    def below(self, count: int) -> int:
        """One of `count` numbers from 0, each as likely; `count` is positive."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class DrawnShapes:
    """The draws from a generator, which is nobody else's."""

    def __init__(self, rng: random.Random, fresh: Length, output: Length) -> None:
        self._rng = rng
        self._fresh = fresh
        self._output = output

    def fresh_tokens(self) -> int:
        """How long a prompt is, without what it shares."""
        return self._fresh.draw(self._rng)

    def output_tokens(self) -> int:
        """How long an answer is."""
        return self._output.draw(self._rng)

    def below(self, count: int) -> int:
        """One of `count` numbers from 0: what `rng.randrange(count)` draws."""
        bits = count.bit_length()
        while (drawn := self._rng.getrandbits(bits)) >= count:
            pass
        return drawn

    def random(self) -> float:
        """A number in [0, 1)."""
        return self._rng.random()
