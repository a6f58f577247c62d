"""What a decode step may cost outside the runner, counted in calls, which no machine changes."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner

calls_per_sequence_max = 50  # 49 when written
calls_per_step_max = 60  # 52 when written


class InstantRunner(FakeRunner):
    def execute(self, batch: StepBatch) -> StepResult:
        count = len(batch.sampled)
        return StepResult(np.ones(count, np.int32), np.zeros(count, np.float32))


def count_calls(action: Callable[[], Any]) -> int:
    count = 0

    def on_event(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_decode_step(sequences: int) -> int:
    """The mean over a few steps, so that the hashing of full blocks has its usual weight."""
    runner = InstantRunner(
        FakeModel(),
        num_blocks=4096,
        block_size_tokens=16,
        max_model_len=1024,
        rows_max=8192,
        sequences_max=sequences,
    )
    core = EngineCore(runner, SchedulerConfig(b"k" * 32, step_rows=8192), ManualClock())
    for index in range(sequences):
        prompt = tuple(range(index, index + 64 + index % 16))
        core.submit(EngineRequest(f"r{index}", prompt, SamplingParams(max_tokens=500)))
    core.step()
    core.step()
    steps = 32
    return count_calls(lambda: [core.step() for _ in range(steps)]) // steps


def test_calls_of_a_step_stay_few_for_each_sequence_and_for_the_step() -> None:
    small, large = calls_of_a_decode_step(4), calls_of_a_decode_step(68)
    per_sequence = (large - small) / 64
    assert per_sequence <= calls_per_sequence_max
    assert small - 4 * per_sequence <= calls_per_step_max


def test_calls_do_not_grow_with_the_context() -> None:
    """Work for each token of history would show as thousands of calls."""
    assert calls_of_a_decode_step(1) <= calls_per_step_max + calls_per_sequence_max
