"""What a model expects after each token of a text: its logits, many positions a step.

Each row of a step is a sequence of its own over the same blocks, as the rows of a draft are.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.engine.runner import RunnerInfo, StepBatch, StepResult


class LogitsRunner(Protocol):
    """A runner that hands out logits; it holds nothing but the text while this runs."""

    @property
    def info(self) -> RunnerInfo:
        """Its fixed properties."""
        ...

    def execute_logits(self, batch: StepBatch) -> tuple[StepResult, NDArray[np.float32]]:
        """One step, and the sampled rows' logits."""
        ...


def text_logits(runner: LogitsRunner, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """The logits (vocab_size,) after each token, up to the longest text that the runner holds."""
    info = runner.info
    held = tokens[: min(info.max_model_len, info.num_blocks * info.block_size_tokens)]
    rows = min(info.rows_max, info.sequences_max)
    for first in range(0, len(held), rows):
        batch = _step(held[first : first + rows], first, info.block_size_tokens)
        _, logits = runner.execute_logits(batch)
        yield from logits


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities, (vocab_size,)."""
    shifted = logits.astype(np.float64) - logits.max()
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found


def divergence(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Kullback and Leibler's, of the first distribution from the other, in nats."""
    return float(np.sum(np.exp(before) * (before - after)))


def perplexity(runner: LogitsRunner, tokens: Sequence[int]) -> float:
    """How many tokens the model wavers between at each of a text's, on the geometric mean."""
    losses = [
        -log_softmax(logits)[following]
        for logits, following in zip(text_logits(runner, tokens), tokens[1:], strict=False)
    ]
    return float(np.exp(np.mean(losses)))


def _step(tokens: Sequence[int], first: int, block_size_tokens: int) -> StepBatch:
    count = len(tokens)
    blocks = -(-(first + count) // block_size_tokens)
    starts = np.arange(count + 1, dtype=np.int32)
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        row_starts=starts,
        context_lens=np.arange(first + 1, first + count + 1, dtype=np.int32),
        block_ids=np.tile(np.arange(blocks, dtype=np.int32), count),
        block_starts=starts * blocks,
        sampled=np.arange(count, dtype=np.int32),
        temperature=np.zeros(count, np.float32),
        top_k=np.zeros(count, np.int32),
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
        seed=np.zeros(count, np.uint64),
        position=np.zeros(count, np.int64),
    )
