"""How much the running requests will still grow, as a share of what they may: learnt, not assumed.

Admitting by prompt alone fills the pool and then preempts; reserving every request's `max_tokens`
leaves it half empty. The share in between moves: up with each preemption, down with each step
without one.

    share in [0.1, 1.0], starts at 0.5; preemption: + 0.1; quiet step: x 0.998
"""

from collections.abc import Iterable

from headrace.engine.sequence import Sequence

share_start = 0.5
share_min = 0.1
share_max = 1.0
share_raise = 0.1
share_decay = 0.998
growth_tokens_max = 512  # a request without a limit of its own must not reserve a whole context


class GrowthEstimate:
    """The blocks to leave free at admission, so that what runs can go on running."""

    def __init__(self, block_size_tokens: int) -> None:
        self.share = share_start
        self._block_size_tokens = block_size_tokens

    def preempted(self) -> None:
        """Admission was too generous."""
        self.share = min(share_max, self.share + share_raise)

    def quiet_step(self) -> None:
        """Nothing was preempted; try to be a little more generous."""
        self.share = max(share_min, self.share * share_decay)

    def blocks(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that these sequences are expected to need beyond those they have."""
        tokens = sum(min(sequence.remaining_count, growth_tokens_max) for sequence in sequences)
        return int(tokens * self.share) // self._block_size_tokens
