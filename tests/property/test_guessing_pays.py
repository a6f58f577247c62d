"""Guessing costs nothing where arithmetic bounds a step, and gains where memory does.

The real core runs on simulated machines, whose steps take the longer of memory's time and of their
rows' arithmetic. What it knows of them is disturbed: each step's time varies, and one of a hundred
takes three times as long. What is compared is the time without that, so that runs with and without
guesses differ by what was guessed alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner

StepTimes = Callable[[int, int], float]  # of rows, and of those with logits
prompt_tokens = 128
variation = 0.05
disturbed_share = 0.01


def bound_by_arithmetic(rows: int, _: int) -> float:
    return 0.002 * rows


def bound_by_memory(rows: int, _: int) -> float:
    return max(0.064, 0.001 * rows)


def bound_by_memory_then_arithmetic(rows: int, _: int) -> float:
    return max(0.032, 0.002 * rows)


def with_a_large_vocabulary(rows: int, logits: int) -> float:
    """Of a small model, whose logits are a fifth of a row."""
    return 0.006 + 0.0014 * rows + 0.0004 * logits


class Machine(FakeRunner):
    """Answers with a function of the request and the place."""

    def __init__(self, times: StepTimes, clock: ManualClock, random: Random) -> None:
        super().__init__(
            FakeModel(50_000),
            num_blocks=1024,
            block_size_tokens=16,
            max_model_len=1024,
            rows_max=128,
            sequences_max=128,
        )
        self._times = times
        self._clock = clock
        self._random = random
        self.seconds = 0.0  # undisturbed

    def execute(self, batch: StepBatch) -> StepResult:
        seconds = self._times(len(batch.token_ids), len(batch.sampled))
        self.seconds += seconds
        is_disturbed = self._random.random() < disturbed_share
        seen_s = seconds * self._random.lognormvariate(0, variation) * (3 if is_disturbed else 1)
        self._clock.advance(seen_s)
        token_ids = answer(batch.seed.astype(np.int64), batch.position)
        return StepResult(token_ids, np.zeros(len(token_ids), np.float32))


def answer(seeds: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int32]:
    return ((places * 7919 + seeds * 104_729) % 50_000).astype(np.int32)


@dataclass
class Guesses:
    """Each comes true as likely as the others."""

    chance: float
    random: Random

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        places = np.arange(count) + sequence.completion_count
        right = answer(np.array([sequence.seed]), places)
        return [int(token) + (self.random.random() >= self.chance) for token in right]


def seconds(
    times: StepTimes, requests: int, at_once: int, tokens: int, chance: float, drafts: int
) -> float:
    """What the machine takes for these requests, so many of them at once."""
    clock, random = ManualClock(), Random(1)
    machine = Machine(times, clock, random)
    config = SchedulerConfig(None, sequences_max=64, draft_tokens_max=drafts)
    core = EngineCore(machine, config, clock, Guesses(chance, Random(2)))
    for first in range(0, requests, at_once):
        for seed in range(first, first + at_once):
            prompt = tuple(random.randrange(1000) for _ in range(prompt_tokens))
            sampling = SamplingParams(temperature=0.0, seed=seed, max_tokens=tokens)
            core.submit(EngineRequest(str(seed), prompt, sampling))
        while core.has_work():
            core.step()
    return machine.seconds


def gain(times: StepTimes, at_once: int, tokens: int, chance: float) -> float:
    requests = max(3, at_once)
    without_s = seconds(times, requests, at_once, tokens, chance, 0)
    return without_s / seconds(times, requests, at_once, tokens, chance, 8)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("at_once", [1, 8, 32])
@pytest.mark.parametrize("times", [bound_by_arithmetic, with_a_large_vocabulary])
def test_nothing_is_lost_where_arithmetic_bounds_a_step(
    times: StepTimes, at_once: int, tokens: int, chance: float
) -> None:
    """Neither in the first answers of 32 tokens nor in the long run."""
    assert gain(times, at_once, tokens, chance) > 0.98


@pytest.mark.parametrize(("chance", "least"), [(0.0, 0.999), (0.5, 1.5), (0.9, 3.3), (0.98, 4.0)])
def test_one_request_gains_what_memory_leaves_free(chance: float, least: float) -> None:
    assert gain(bound_by_memory, 1, 32, chance) > least


@pytest.mark.parametrize(("chance", "least"), [(0.0, 0.99), (0.5, 1.02), (0.9, 1.1), (0.98, 1.15)])
def test_many_requests_gain_what_memory_leaves_free(chance: float, least: float) -> None:
    """8 rows of the 16 that cost no more than one: 2 tokens a step at most."""
    assert gain(bound_by_memory_then_arithmetic, 8, 32, chance) > least


def test_guesses_that_come_true_speed_many_requests_up_where_a_step_costs_more_than_rows() -> None:
    assert gain(with_a_large_vocabulary, 8, 128, 0.98) > 1.08
