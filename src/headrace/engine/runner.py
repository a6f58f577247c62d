"""The model runner protocol: the seam between scheduling and computing.

A step is a ragged batch: the rows (tokens) of all its sequences laid end to end. A sequence may
contribute one row (decode) or many (a prefill chunk); both kinds mix freely.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.lora.adapter import LoraAdapter

ActivationBits = Literal[8, 16]  # 8: of products with quantized weights, where that is faster
WeightsCheck = Literal["more", "sound", "damaged"]  # more: there is more to read
activation_bits_default: ActivationBits = 8  # of an engine that nobody told


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner offers; fixed for its life."""

    vocab_size: int
    max_model_len: int  # tokens of one sequence
    num_blocks: int
    block_size_tokens: int
    rows_max: int  # rows of one step
    sequences_max: int  # sequences of one step
    kernel_name: str  # for people: "avx2", "avx512-vnni", ...
    adapters_max: int = 0  # LoRA adapters that it holds at once
    weight_bytes: int = 0  # that a step reads at most, and how many a token of context adds;
    kv_token_bytes: int = 0  # 0 of a runner that does not say
    activation_bits: int = 16  # 8 if some weights are multiplied with such


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Changes to single logits of the samples, laid end to end: E in all.

    A logit is divided by its factor if positive and multiplied if not, then the addend is added."""

    starts: NDArray[np.int32]  # (N + 1,) sample n has edits starts[n]:starts[n + 1]
    ids: NDArray[np.int32]  # (E,)
    factors: NDArray[np.float32]  # (E,)
    addends: NDArray[np.float32]  # (E,) minus infinity bans the token


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Which tokens the samples may be, for those that have a mask."""

    rows: NDArray[np.int32]  # (N,) row of `words`, -1 is no mask
    words: NDArray[np.uint32]  # (M, W) bit i % 32 of word i // 32 allows token i


@dataclass(frozen=True, slots=True)
class RareFilters:
    """What few requests ask for: typical sampling and XTC; 1, 1 and 0 of the samples without."""

    typical_p: NDArray[np.float32]  # (N,) 1 is off
    xtc_threshold: NDArray[np.float32]  # (N,)
    xtc_probability: NDArray[np.float32]  # (N,) 0 is off


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's work; S sequences with R rows in all, of which the sampled ones are N."""

    token_ids: NDArray[np.int32]  # (R,)
    row_starts: NDArray[np.int32]  # (S + 1,) sequence s owns rows row_starts[s]:row_starts[s+1]
    context_lens: NDArray[np.int32]  # (S,) tokens in KV after this step, this step's rows included
    block_ids: NDArray[np.int32]  # (B,) block tables laid end to end
    block_starts: NDArray[np.int32]  # (S + 1,) table of s is block_ids[block_starts[s]:...[s+1]]
    sampled: NDArray[np.int32]  # (N,) indices of sequences whose last row is sampled
    temperature: NDArray[np.float32]  # (N,)
    top_k: NDArray[np.int32]  # (N,) 0 is off
    top_p: NDArray[np.float32]  # (N,)
    min_p: NDArray[np.float32]  # (N,)
    seed: NDArray[np.uint64]  # (N,)
    position: NDArray[np.int64]  # (N,) index of the sampled token in its output; counter of the rng
    edits: LogitEdits | None = None  # these four are None in a step where nobody asks for them
    masks: TokenMasks | None = None
    top_counts: NDArray[np.int32] | None = None  # (N,) likeliest tokens to list; K at most
    adapters: NDArray[np.int32] | None = None  # (S,) slot of each one's adapter, -1 is none
    filters: RareFilters | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed; as a token id -1 marks a row whose logits were not finite, and -2 one
    where no token was allowed."""

    token_ids: NDArray[np.int32]  # (N,)
    logprobs: NDArray[np.float32]  # (N,) of the chosen token under the unmodified distribution
    top_ids: NDArray[np.int32] | None = None  # (N, K), each row valid up to its top count
    top_logprobs: NDArray[np.float32] | None = None  # (N, K)


class ModelRunner(Protocol):
    """A device that holds weights and KV blocks and runs steps, one at a time."""

    @property
    def info(self) -> RunnerInfo:
        """The runner's fixed properties."""
        ...

    def execute(self, batch: StepBatch) -> StepResult:
        """Run one step: write KV for every row, sample the asked sequences. Releases the GIL."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (source, destination) before the next step."""
        ...

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        """The KV of these blocks as opaque bytes, for host memory or another runner."""
        ...

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        """Put exported KV back into these blocks; ValueError if it is not this runner's layout."""
        ...

    def close(self) -> None:
        """Free the device; idempotent."""
        ...


@runtime_checkable
class AdapterRunner(Protocol):
    """A runner that can also hold LoRA adapters, in slots 0 to `info.adapters_max - 1`."""

    @property
    def spec(self) -> ArchitectureSpec:
        """The model that adapters must fit."""
        ...

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Copy an adapter into a slot that no request of a step names; between or in steps."""
        ...

    def unload_adapter(self, slot: int) -> None:
        """Free a slot that no request of a step names any more."""
        ...


@runtime_checkable
class DiscardingRunner(Protocol):
    """A runner that can give the memory of its KV blocks back, and take it again when used."""

    def discard_kv(self) -> None:
        """Lose the content of all blocks; no sequence may have any."""
        ...


@runtime_checkable
class CheckedRunner(Protocol):
    """A runner whose weights come from a file that something may have damaged."""

    def check_weights(self, byte_count: int) -> WeightsCheck:
        """Compare so many more bytes of the weights with what they were; beside steps."""
        ...
