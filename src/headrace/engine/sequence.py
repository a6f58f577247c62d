"""One request's state in the engine: its tokens and how many of them have their KV computed.

`computed` catches up with `total`, whatever the reason that it lags behind:

    prompt          computed = 0 or a prefix hit     total = prompt
    chunk           computed grows by the chunk      total stays
    decode          computed = total - 1             one row a step; total grows by its token
    preemption      computed = 0                     total stays: the output is computed again too
"""

from array import array
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from headrace.engine.request import EngineRequest, RequestUsage

no_table: NDArray[np.int32] = np.empty(0, np.int32)
unused = RequestUsage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


class SequenceState(Enum):
    """Where a sequence is; it enters FINISHED once and stays there."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens, progress and KV blocks of one request."""

    __slots__ = (
        "arrival",
        "arrival_s",
        "block_hashes",
        "blocks",
        "cached_tokens",
        "committed_blocks",
        "computed",
        "max_tokens",
        "min_tokens",
        "order",
        "peak_computed",
        "preemption_count",
        "priority",
        "prompt_count",
        "queue_s",
        "request",
        "request_id",
        "slot",
        "state",
        "stop_token_ids",
        "table",
        "tokens",
    )

    def __init__(
        self, request: EngineRequest, arrival: int, arrival_s: float, max_tokens: int
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        self.arrival_s = arrival_s
        self.priority = request.priority  # the class it is in now; ageing lowers the number
        self.order = (request.priority, arrival)  # the smaller goes first
        self.state = SequenceState.WAITING
        self.slot = -1  # row of the sampling table while running

        self.tokens = array("i", request.prompt_token_ids)  # the prompt, then the output
        self.prompt_count = len(self.tokens)
        self.max_tokens = max_tokens
        self.min_tokens = sampling.min_tokens
        self.stop_token_ids = frozenset() if sampling.ignore_eos else sampling.stop_token_ids

        self.computed = 0  # tokens whose KV is in the blocks
        self.peak_computed = 0  # the most that `computed` ever was: below it is recomputation
        self.cached_tokens = 0  # of the prompt, found in the cache at first admission
        self.preemption_count = 0
        self.queue_s: float | None = None  # how long it waited for its first step

        self.blocks: list[int] = []
        self.table = no_table  # (blocks at full length,) int32, its first len(blocks) are valid
        self.block_hashes: list[bytes] = []  # of full blocks, as far as anyone asked
        self.committed_blocks = 0  # full blocks whose content others may find

    def move_to_class(self, priority: int) -> None:
        """Change its class; whoever keeps it sorted by `order` must sort again."""
        self.priority = priority
        self.order = (priority, self.arrival)

    @property
    def total(self) -> int:
        """Tokens known so far."""
        return len(self.tokens)

    @property
    def completion_count(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_count

    @property
    def remaining_count(self) -> int:
        """Tokens that may still be generated."""
        return self.prompt_count + self.max_tokens - len(self.tokens)

    @property
    def usage(self) -> RequestUsage:
        """What the request has used so far: nothing before its first step."""
        if self.queue_s is None:
            return unused
        return RequestUsage(self.prompt_count, self.cached_tokens, self.completion_count)
