"""What the engine is asked for and what it answers: token ids, never text.

A request's progress is one number: `computed` catches up with `total` (see `sequence.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.engine.kv_parcel import KvParcel


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop token was sampled, or the output came to its `OutputEnd`
    LENGTH = "length"  # max_tokens or the context length was reached
    ABORT = "abort"  # the caller went away
    TIMEOUT = "timeout"  # its deadline passed
    ERROR = "error"  # this request failed; `RequestOutput.error` says how


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """How many tokens a model may think before it has to answer; see `thought_budget.py`."""

    token_count: int
    closing_id: int  # the token that ends a thought
    opening_id: int | None = None  # the one that begins it; None: the prompt began it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is chosen from logits, in the order of docs/concepts/sampling.md.

    Penalties (repetition, frequency, presence), logit bias and bans, then temperature, then top-k,
    then typical, then top-p, then min-p, then XTC, then a draw from (seed, position).
    """

    temperature: float = 1.0  # 0 means greedy
    top_k: int = 0  # 0 means off
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1)
    typical_p: float = 1.0  # (0, 1] mass of the tokens nearest to the expected surprise; 1 is off
    xtc_threshold: float = 0.1  # (0, 1] probability from which on a token is a top choice
    xtc_probability: float = 0.0  # [0, 1] with which all top choices but the last go; 0 is off
    seed: int = 0  # 64 bits; the server draws one where the client gave none
    max_tokens: int = 16  # 0 only with `prompt_logprobs`: the prompt alone is computed
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()  # includes the model's end-of-turn ids
    ignore_eos: bool = False
    repetition_penalty: float = 1.0  # of tokens of prompt and output; 1 is off
    frequency_penalty: float = 0.0  # times a token's count in the output
    presence_penalty: float = 0.0  # once for each token of the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, addend)
    allowed_token_ids: frozenset[int] | None = None  # None allows all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that the output must not have
    dry_multiplier: float = 0.0  # against repeated sequences (dry_penalty.py); 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2  # tokens of a repetition that cost nothing
    dry_breakers: frozenset[int] = frozenset()  # tokens that end a repetition
    thought_budget: ThoughtBudget | None = None
    top_logprobs: int | None = None  # likeliest tokens to list; None reports no log-probabilities
    prompt_logprobs: int | None = None  # the same for each token of the prompt but the first


class TokenConstraint(Protocol):
    """A rule of which tokens may come next, such as a grammar."""

    def mask_after(self, output_token_ids: Sequence[int]) -> NDArray[np.uint32]:
        """Bit i % 32 of word i // 32 allows token i after this output; valid until the next call.

        Another call's output may be longer, shorter, or end in other tokens."""
        ...

    def allowed_count(self, output_token_ids: Sequence[int], guesses: Sequence[int]) -> int:
        """How many of these tokens, one after the other, may follow this output."""
        ...

    def forced_after(self, output_token_ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that are likely the only way to go on; a guess, often none."""
        ...

    def fresh(self) -> "TokenConstraint":
        """The same rule for another output, which is still empty."""
        ...


class OutputEnd(Protocol):
    """What ends an output beside a stop token, such as a text that its tokens have become."""

    def is_reached_by(self, token_id: int) -> bool:
        """Take the output's next token; whether the output ends with it."""
        ...

    def fresh(self) -> "OutputEnd":
        """The same for another output, which is still empty."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the runner holds, which a request's tokens go through."""

    slot: int  # of the runner
    version: str  # its digest: content under one name may change


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One or more prompts, and for each of them one or more outputs: the request's choices.

    Choice `p * choice_count + i` is the i-th output of prompt p, and what a request of that prompt
    alone gives with the seed `seed + i`. The choices of a prompt share its KV blocks."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0  # a smaller number is a higher class
    cache_salt: str = ""  # separates tenants' prefix cache; set by trusted callers only
    constraint: TokenConstraint | None = None  # of this request alone
    choice_count: int = 1  # outputs of each prompt
    more_prompts: tuple[tuple[int, ...], ...] = ()
    deadline_s: float | None = None  # by the engine's clock; what is unfinished then ends
    adapter: Adapter | None = None
    hands_over: bool = False  # its prompt's KV goes to another engine with the last output
    output_end: OutputEnd | None = None  # of this request alone

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """All prompts, the first one first."""
        return (self.prompt_token_ids, *self.more_prompts)


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """One choice's counts from the scheduler's own token ids, right also after preemption.

    The choices' counts add up to the request's: the first choice of a prompt that is scheduled
    counts the prompt. A choice that was never scheduled used nothing: all are 0."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    accepted_drafts: int = 0  # guesses that were right, which are part of the completion
    refused_drafts: int = 0  # computed and thrown away, which are part of nothing


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """An output token's log-probability and the likeliest tokens there, by the raw logits."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), the likeliest first


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step produced for one choice of a request."""

    request_id: str
    token_ids: tuple[
        int, ...
    ]  # new ones only; not a stop token, but the one that an `OutputEnd` ends with
    finish_reason: FinishReason | None
    usage: RequestUsage
    error: str | None = None
    queue_s: float | None = None  # from arrival to the first scheduled step; None before that
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of `token_ids`, if asked for
    index: int = 0  # of the choice
    cumulative_logprob: float = 0.0  # of all tokens of the choice so far
    is_callers_error: bool = False  # `error` is the request's own fault, and would come again
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # once, with a prompt's first output
    parcel: KvParcel | None = None  # of a request that hands over, with its last output


@dataclass(slots=True)
class EngineStats:
    """Counters and gauges of the engine, for /metrics; counters only grow."""

    running_requests: int = 0
    waiting_requests: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0  # referenced by a live request; reclaimable cache is not counted
    prompt_tokens_total: int = 0  # of prompts, counted once when first scheduled
    cached_tokens_total: int = 0
    completion_tokens_total: int = 0
    preemptions_total: int = 0
    leaked_blocks_total: int = 0  # held though no request was left, and taken back
    recomputed_tokens_total: int = 0
    host_blocks: int = 0  # of preempted requests, kept in host memory
    saved_tokens_total: int = 0  # whose KV was copied there
    restored_tokens_total: int = 0  # and back
    steps_total: int = 0
    step_seconds_total: float = 0.0  # the runner's share
    scheduler_seconds_total: float = 0.0  # everything else of a step
    finished_total: dict[str, int] = field(default_factory=dict)  # by finish reason
    waiting_by_reason: dict[str, int] = field(default_factory=dict)  # see `waiting_counts.py`
    waiting_by_class: dict[str, int] = field(default_factory=dict)
    achieved_bytes_per_s: float = 0.0  # read by the last steps without a prompt; 0 is unknown
    drafts_total: int = 0  # times that a sequence got guesses to verify
    draft_seconds_total: float = 0.0  # of a draft model's steps, part of the scheduler's
    drafted_by_position: tuple[int, ...] = ()  # guesses, by their place in a draft
    accepted_by_position: tuple[int, ...] = ()  # those that were right
    exported_tokens_total: int = 0  # whose KV was made ready for another engine
    imported_tokens_total: int = 0  # whose KV came from another engine
    kv_transfers: dict[str, int] = field(default_factory=dict)  # by result; see `kv_transfer.py`
