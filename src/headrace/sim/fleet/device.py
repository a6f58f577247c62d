"""How long a device takes for a step: the only thing that a simulated engine invents.

    step = fixed + max(weights read, rows x row) + sequences x sequence
         + KV tokens read x context token + (row, KV token) pairs x pair

`fixed` is launching and scheduling, the maximum is the roofline of the matrices, the KV terms are
attention: a decoding sequence reads its context once, a chunk of a prompt multiplies each of its
rows with it. A CPU overlaps reading and computing badly; `is_roofline = False` adds the two.
"""

import msgspec


class DeviceModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time model and the limits of one replica's device, or group of devices."""

    source: str  # where the numbers come from
    fixed_s: float  # a step at least
    weights_s: float  # reading every matrix once
    row_s: float  # the matrices' arithmetic for one token
    sequence_s: float = 0.0  # sampling and bookkeeping of one sequence
    context_token_s: float = 0.0  # reading one token's KV
    pair_s: float = 0.0  # attention's arithmetic for one row and one token of its context
    is_roofline: bool = True
    kv_tokens: int  # room for KV
    block_size_tokens: int = 16
    step_rows: int = 2048
    sequences_max: int = 256
    waiting_max: int = 1024  # queued inside; more are refused
    max_model_len: int = 131_072

    def step_s(self, rows: int, sequences: int, context_tokens: float, pairs: float) -> float:
        """The time of a step of so many rows in all, over KV of `context_tokens` in all."""
        compute_s = rows * self.row_s
        if self.is_roofline:
            matrices_s = max(self.weights_s, compute_s)
        else:
            matrices_s = self.weights_s + compute_s
        return (
            self.fixed_s
            + matrices_s
            + sequences * self.sequence_s
            + context_tokens * self.context_token_s
            + pairs * self.pair_s
        )

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
            sequence_s=self.sequence_s * factor,
            context_token_s=self.context_token_s * factor,
            pair_s=self.pair_s * factor,
        )
