"""A text's logits are those of reading it token by token, however many rows a step takes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.engine.scored_text import divergence, log_softmax, perplexity, text_logits

vocab = 8


class CountingRunner:
    """Expects the next number after the sum of what it has read, by position in the blocks."""

    def __init__(self, rows: int, *, context: int = 32) -> None:
        self.info = RunnerInfo(vocab, context, 4, 16, rows, rows, "none")
        self.read: dict[int, int] = {}  # slot -> token
        self.steps = 0

    def execute_logits(self, batch: StepBatch) -> tuple[StepResult, NDArray[np.float32]]:
        self.steps += 1
        logits = np.zeros((len(batch.sampled), vocab), np.float32)
        for row, token in enumerate(batch.token_ids):
            start = batch.block_starts[row]
            position = int(batch.context_lens[row]) - 1
            self.read[int(batch.block_ids[start + position // 16]) * 16 + position % 16] = token
        for row in range(len(batch.sampled)):
            seen = sum(self.read[slot] for slot in range(int(batch.context_lens[row])))
            logits[row, seen % vocab] = 5.0
        return StepResult(np.zeros(0, np.int32), np.zeros(0, np.float32)), logits


tokens = [1, 3, 2, 7, 5, 5, 0, 4, 1, 1, 6, 2, 3, 3, 7, 0, 1, 2, 5]


@pytest.mark.parametrize("rows", [1, 4, 19, 32])
def test_any_number_of_rows_reads_the_same(rows: int) -> None:
    runner = CountingRunner(rows)
    found = [int(logits.argmax()) for logits in text_logits(runner, tokens)]
    assert found == (np.cumsum(tokens) % vocab).tolist()
    assert runner.steps == -(-len(tokens) // rows)


def test_a_text_longer_than_the_context_is_cut() -> None:
    assert len(list(text_logits(CountingRunner(8, context=10), tokens))) == 10


def test_perplexity_is_one_over_the_mean_probability() -> None:
    total = np.exp(5) + 7  # of a softmax over one 5 and seven 0
    sure, wrong = np.exp(5) / total, 1 / total
    read = [1, 1, 2, 4, 5]  # each the sum of what is before it, but for the last, modulo 8
    expected = np.exp(-(3 * np.log(sure) + np.log(wrong)) / 4)
    assert perplexity(CountingRunner(4), read) == pytest.approx(expected, rel=1e-4)


def test_divergence_is_zero_only_of_equals() -> None:
    even, uneven = log_softmax(np.zeros(4, np.float32)), log_softmax(np.arange(4, dtype=np.float32))
    assert divergence(even, even) == 0
    assert divergence(even, uneven) > 0
