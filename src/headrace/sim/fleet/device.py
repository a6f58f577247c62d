"""How long a device takes for a step: the only thing that a simulated engine invents.

    step = fixed + matrices(rows) + sequences x sequence
         + KV tokens read x context token + (row, KV token) pairs x pair

    matrices(rows) = max(weights read, rows x row), the roofline, or
                     straight lines between measured points

`fixed` is launching and scheduling, the KV terms are attention: a decoding sequence reads its
context once, a chunk of a prompt multiplies each of its rows with it. A device that was measured
has points: few rows share one pass over a CPU's weights, and no maximum of two terms is as round.
"""

from bisect import bisect_left
from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0.0)]
Count = Annotated[int, Meta(ge=1)]


class DeviceModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time model and the limits of one replica's device, or group of devices."""

    source: str  # where the numbers come from
    fixed_s: Seconds  # a step at least
    weights_s: Seconds = 0.0  # reading every matrix once
    row_s: Seconds = 0.0  # the matrices' arithmetic for one token
    matrix_points: tuple[tuple[int, float], ...] = ()  # rows and seconds, in the place of those two
    sequence_s: Seconds = 0.0  # sampling and bookkeeping of one sequence
    context_token_s: Seconds = 0.0  # reading one token's KV
    pair_s: Seconds = 0.0  # attention's arithmetic for one row and one token of its context
    kv_tokens: Count  # room for KV
    block_size_tokens: Count = 16
    step_rows: Count = 2048
    sequences_max: Count = 256
    waiting_max: Count = 1024  # queued inside; more are refused
    max_model_len: Count = 131_072

    def __post_init__(self) -> None:
        rows = [point[0] for point in self.matrix_points]
        if len(rows) == 1 or rows != sorted(set(rows)):
            raise ValueError("matrix_points are two or more, by rows")
        if not self.matrix_points and self.weights_s + self.row_s <= 0:
            raise ValueError("a device has matrix_points, or weights_s and row_s")

    def step_s(self, rows: int, sequences: int, context_tokens: float, pairs: float) -> float:
        """The time of a step of so many rows in all, over KV of `context_tokens` in all."""
        if self.matrix_points:
            matrices_s = self._between_points(rows)
        else:
            matrices_s = max(self.weights_s, rows * self.row_s)
        return (
            self.fixed_s
            + matrices_s
            + sequences * self.sequence_s
            + context_tokens * self.context_token_s
            + pairs * self.pair_s
        )

    def _between_points(self, rows: int) -> float:
        """On the line through the two points beside `rows`, or through the last two beyond them."""
        points = self.matrix_points
        after = min(len(points) - 1, max(1, bisect_left(points, (rows, 0.0))))
        (low, low_s), (high, high_s) = points[after - 1], points[after]
        return low_s + (high_s - low_s) * (rows - low) / (high - low)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens a second of a long prompt alone, attention left out."""
        return self.step_rows / self.step_s(self.step_rows, 1, 0.0, 0.0)

    def slowed(self, factor: float) -> "DeviceModel":
        """The same device taking `factor` times as long."""
        return msgspec.structs.replace(
            self,
            fixed_s=self.fixed_s * factor,
            weights_s=self.weights_s * factor,
            row_s=self.row_s * factor,
            matrix_points=tuple((rows, time_s * factor) for rows, time_s in self.matrix_points),
            sequence_s=self.sequence_s * factor,
            context_token_s=self.context_token_s * factor,
            pair_s=self.pair_s * factor,
        )
