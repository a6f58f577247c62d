"""One choice's state in the engine: its tokens and how many of them have their KV computed.

`computed` catches up with `total`, whatever the reason that it lags behind:

    prompt          computed = 0 or a prefix hit     total = prompt
    chunk           computed grows by the chunk      total stays
    decode          computed = total - 1             one row a step; total grows by its token
    preemption      computed = 0, then what is left  total stays: the output is computed again too
"""

from array import array
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from headrace.engine.request import EngineRequest, RequestUsage, TokenLogprobs

preemptions_max = 4  # from then on the others of its class give way first
no_table: NDArray[np.int32] = np.empty(0, np.int32)
unused = RequestUsage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


class SequenceState(Enum):
    """Where a sequence is; it enters FINISHED once and stays there."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens, progress and KV blocks of one choice of a request.

    The first choice of a prompt is the leader of the others, which copy the prompt's KV from it."""

    __slots__ = (
        "accepted_drafts",
        "adapter_slot",
        "arrival",
        "arrival_s",
        "block_hashes",
        "blocks",
        "cached_tokens",
        "committed_blocks",
        "computed",
        "constraint",
        "counts_prompt",
        "cumulative_logprob",
        "drafts",
        "foreign_cached",
        "index",
        "kept_blocks",
        "kept_tokens",
        "kept_uses",
        "leader",
        "max_tokens",
        "min_tokens",
        "order",
        "output_end",
        "peak_computed",
        "preemption_count",
        "priority",
        "prompt_count",
        "prompt_is_counted",
        "prompt_logprobs",
        "public_blocks",
        "queue_s",
        "refused_drafts",
        "request",
        "request_id",
        "seed",
        "slot",
        "state",
        "stop_token_ids",
        "table",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        arrival: int,
        arrival_s: float,
        max_tokens: int,
        *,
        index: int = 0,
        leader: "Sequence | None" = None,
    ) -> None:
        sampling = request.sampling
        prompt_index, nth = divmod(index, request.choice_count)
        self.request = request
        self.request_id = request.request_id
        self.adapter_slot = -1 if request.adapter is None else request.adapter.slot
        self.index = index  # of the choice
        self.leader = leader  # the first choice of the same prompt, if this is another
        self.seed = sampling.seed + nth
        constraint = request.constraint
        self.constraint = constraint if constraint is None or index == 0 else constraint.fresh()
        end = request.output_end
        self.output_end = end if end is None or index == 0 else end.fresh()
        self.arrival = arrival
        self.arrival_s = arrival_s
        self.priority = request.priority  # the class it is in now; ageing lowers the number
        self.order = (
            request.priority,
            True,
            arrival,
        )  # the smaller goes first; see `move_to_class`
        self.state = SequenceState.WAITING
        self.slot = -1  # row of the sampling table while running

        self.tokens = array("i", request.prompts[prompt_index])  # the prompt, then the output
        self.prompt_count = len(self.tokens)
        self.max_tokens = max_tokens
        self.min_tokens = sampling.min_tokens
        self.stop_token_ids = frozenset() if sampling.ignore_eos else sampling.stop_token_ids

        self.computed = 0  # tokens whose KV is in the blocks
        self.peak_computed = 0  # the most that `computed` ever was: below it is recomputation
        self.cached_tokens = 0  # of the prompt, found in the cache at first admission
        self.foreign_cached: int | None = None  # what the engine that sent its KV had cached
        self.preemption_count = 0
        self.queue_s: float | None = None  # how long it waited for its first step
        self.prompt_is_counted = False  # of a leader: one of the choices counts the prompt
        self.counts_prompt = False
        self.cumulative_logprob = 0.0

        self.drafts: list[int] = []  # guesses of the next tokens, for the step that is scheduled
        self.accepted_drafts = 0  # in all
        self.refused_drafts = 0
        # Of the prompt's tokens but the first, while the leader collects them.
        wants_logprobs = sampling.prompt_logprobs is not None and leader is None
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wants_logprobs else None

        self.blocks: list[int] = []
        self.table = no_table  # (blocks at full length,) int32, its first len(blocks) are valid
        self.block_hashes: list[bytes] = []  # of full blocks, as far as anyone asked
        self.public_blocks: int | None = None  # that begin as a public prompt; see `kv_cache.py`
        self.committed_blocks = 0  # full blocks whose content others may find
        # Of one that was preempted: what it had, as long as nobody else took it.
        self.kept_blocks: list[int] = []
        self.kept_uses: list[int] = []
        self.kept_tokens = 0

    def move_to_class(self, priority: int) -> None:
        """Change its class; whoever keeps it sorted by `order` must sort again.

        In its class it goes before all that were not preempted too often."""
        self.priority = priority
        self.order = (priority, self.preemption_count < preemptions_max, self.arrival)

    def count_preemption(self) -> None:
        """Note that it lost its blocks; it must not be in a sorted list meanwhile."""
        self.preemption_count += 1
        self.move_to_class(self.priority)

    @property
    def total(self) -> int:
        """Tokens known so far."""
        return len(self.tokens)

    @property
    def completion_count(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_count

    @property
    def output(self) -> "array[int]":
        """The tokens generated so far."""
        return self.tokens[self.prompt_count :]

    @property
    def remaining_count(self) -> int:
        """Tokens that may still be generated."""
        return self.prompt_count + self.max_tokens - len(self.tokens)

    def awaited_logprobs(self, row_count: int) -> int:
        """How many of the next rows tell the log-probability of a token of the prompt."""
        if self.prompt_logprobs is None:
            return 0
        return max(0, min(row_count, self.prompt_count - 1 - self.computed))

    def start(self, queue_s: float, hit_tokens: int) -> None:
        """Note the first step, and count the prompt unless another choice of it does.

        So many of its tokens were found in the prefix cache here."""
        head = self.leader or self
        self.queue_s = queue_s
        self.cached_tokens = self.computed
        if self.foreign_cached is not None:  # what came from there was not cached, but computed
            self.cached_tokens = min(self.computed, max(hit_tokens, self.foreign_cached))
        self.counts_prompt, head.prompt_is_counted = not head.prompt_is_counted, True

    @property
    def usage(self) -> RequestUsage:
        """What the choice has used so far: nothing before its first step."""
        if self.queue_s is None:
            return unused
        prompt = (self.prompt_count, self.cached_tokens) if self.counts_prompt else (0, 0)
        return RequestUsage(
            *prompt, self.completion_count, self.accepted_drafts, self.refused_drafts
        )
