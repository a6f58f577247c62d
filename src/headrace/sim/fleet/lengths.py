"""How long prompts and answers are: lognormal by the median and the 90th percentile.

Two numbers describe each, because that is what published traces agree to tell. A third, the 99th
percentile, gives the last tenth a slope of its own: answers' tails are seldom their body's. Where a
named source gives a mean instead, `docs/concepts/simulator.md` says how it was turned into these.
"""

import math
import random

import msgspec

z_90 = 1.2815515655446004  # the standard normal's 90th percentile
z_99 = 2.3263478740408408  # and its 99th


class Length(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of token counts."""

    median: float
    p90: float
    p99: float | None = None  # None: where the median and `p90` lead
    minimum: int = 1
    maximum: int = 1_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p90 or not 1 <= self.minimum <= self.maximum:
            raise ValueError("a length has 1 <= median <= p90 and 1 <= minimum <= maximum")
        if self.p99 is not None and self.p99 < self.p90:
            raise ValueError("a length has p90 <= p99")

    def draw(self, rng: random.Random) -> int:
        """A token count."""
        z = rng.gauss(0.0, 1.0)
        if self.p99 is None or z < z_90:
            value = round(self.median * math.exp(math.log(self.p90 / self.median) / z_90 * z))
        else:
            sigma = math.log(self.p99 / self.p90) / (z_99 - z_90)
            value = round(self.p90 * math.exp(sigma * (z - z_90)))
        if value < self.minimum:
            return self.minimum
        return value if value < self.maximum else self.maximum
