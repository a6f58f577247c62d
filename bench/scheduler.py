"""What a step costs outside the runner: microseconds of scheduling, batching and token handling.

    python bench/scheduler.py [--steps 2000] [--json]

Every sequence decodes with a context of 256 tokens and an output long enough never to end; the
runner answers at once. Shown are the median and the 90th percentile of single steps. The median is
what Python adds to a decode step; compare it with the runner's own time at that batch size.
"""

import argparse
import json
import statistics
from collections.abc import Sequence

import numpy as np

from headrace.base.clock import SystemClock
from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig

batch_sizes = (1, 8, 32, 128)
prompt_tokens = 256
block_size_tokens = 16


class InstantRunner:
    """Answers every step with token 1 and computes nothing."""

    def __init__(self, sequences: int, steps: int) -> None:
        tokens = prompt_tokens + steps + 64
        self.info = RunnerInfo(
            vocab_size=49_152,
            max_model_len=tokens,
            num_blocks=sequences * (tokens // block_size_tokens + 1),
            block_size_tokens=block_size_tokens,
            rows_max=sequences * prompt_tokens,
            sequences_max=sequences,
            kernel_name="instant",
        )

    def execute(self, batch: StepBatch) -> StepResult:
        count = len(batch.sampled)
        return StepResult(np.ones(count, np.int32), np.zeros(count, np.float32))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        raise AssertionError("not part of this measurement")

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        raise AssertionError("not part of this measurement")

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        raise AssertionError("not part of this measurement")

    def close(self) -> None:
        pass


def measure(sequences: int, steps: int) -> dict[str, float]:
    """Microseconds a step at one batch size, the runner's share taken off."""
    config = SchedulerConfig(prefix_cache_key=b"k" * 32, step_rows=sequences * prompt_tokens)
    core = EngineCore(InstantRunner(sequences, steps), config, SystemClock())
    for index in range(sequences):
        prompt = tuple(range(index, index + prompt_tokens))
        core.submit(EngineRequest(f"r{index}", prompt, SamplingParams(max_tokens=steps + 32)))
    core.step()
    core.step()
    samples_us = []
    before_s = core.stats().scheduler_seconds_total
    for _ in range(steps):
        outputs = core.step()
        assert len(outputs) == sequences
        after_s = core.stats().scheduler_seconds_total
        samples_us.append((after_s - before_s) * 1e6)
        before_s = after_s
    deciles = statistics.quantiles(samples_us, n=10)
    return {"sequences": sequences, "p50_us": statistics.median(samples_us), "p90_us": deciles[8]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = [measure(sequences, arguments.steps) for sequences in batch_sizes]
    if arguments.json:
        print(json.dumps(results))
        return
    print("sequences  p50 us  p90 us  p50 us each")
    for result in results:
        sequences, p50_us, p90_us = result["sequences"], result["p50_us"], result["p90_us"]
        print(f"{sequences:9}  {p50_us:6.0f}  {p90_us:6.0f}  {p50_us / sequences:11.2f}")


if __name__ == "__main__":
    main()
