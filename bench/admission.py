"""What learning how much requests grow is worth, in tokens a second of simulated time.

    python bench/admission.py

The runner is simulated by its cost, `step_s + row_s * rows`, close to a 135M-parameter model on two
AVX2 cores, so the result is the same on every machine. Compared are: reserving nothing for growth,
reserving all that `max_tokens` allows (at most 512), and the learnt share of `engine/growth.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from headrace.engine import growth
from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, EngineStats, SamplingParams
from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.clock import ManualClock

step_s = 0.006
row_s = 0.0006
clients = 32
requests_total = 160
block_size_tokens = 16


@dataclass(frozen=True)
class Load:
    """Requests that all look alike; the answer ends after `output_tokens`, whatever was asked."""

    name: str
    pool_tokens: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int


loads = (
    Load("128 in, 128 out, asked for 128", 4096, 128, 128, 128),
    Load("100 in, 200 out, no limit asked", 4096, 100, 200, 8000),
)
policies = {  # share_start, share_raise, share_decay, share_min
    "nothing": (0.0, 0.0, 1.0, 0.0),
    "in full": (1.0, 0.0, 1.0, 1.0),
    "learnt": (growth.share_start, growth.share_raise, growth.share_decay, growth.share_min),
}


class CostedRunner:
    """Takes simulated time for each step and answers token 1."""

    def __init__(self, clock: ManualClock, pool_tokens: int) -> None:
        self._clock = clock
        self.info = RunnerInfo(
            vocab_size=49_152,
            max_model_len=8192,
            num_blocks=pool_tokens // block_size_tokens,
            block_size_tokens=block_size_tokens,
            rows_max=128,
            sequences_max=clients,
            kernel_name="costed",
        )

    def execute(self, batch: StepBatch) -> StepResult:
        self._clock.advance(step_s + row_s * len(batch.token_ids))
        count = len(batch.sampled)
        return StepResult(np.ones(count, np.int32), np.zeros(count, np.float32))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        raise AssertionError("not part of this simulation")

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        raise AssertionError("not part of this simulation")

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        raise AssertionError("not part of this simulation")

    def close(self) -> None:
        pass


def simulate(load: Load) -> tuple[float, EngineStats]:
    """Tokens a second, and the counters, of clients that each send when the last answer ended."""
    clock = ManualClock()
    runner = CostedRunner(clock, load.pool_tokens)
    core = EngineCore(runner, SchedulerConfig(prefix_cache_key=b"k" * 32), clock)
    rng = np.random.default_rng(0)
    submitted = 0

    def submit() -> None:
        nonlocal submitted
        prompt = tuple(rng.integers(0, 49_152, load.prompt_tokens).tolist())
        sampling = SamplingParams(max_tokens=load.max_tokens)
        core.submit(EngineRequest(f"r{submitted}", prompt, sampling))
        submitted += 1

    for _ in range(clients):
        submit()
    while core.has_work():
        for output in core.step():
            if output.finish_reason is not None:
                if submitted < requests_total:
                    submit()
            elif output.usage.completion_tokens >= load.output_tokens:
                core.abort(output.request_id)
    stats = core.stats()
    return stats.completion_tokens_total / clock.monotonic_s(), stats


def main() -> None:
    print("| load | reserved | tokens/s | preemptions | recomputed tokens |")
    print("|---|---|---|---|---|")
    for load in loads:
        for name, (start, raised, decay, minimum) in policies.items():
            with patch.multiple(
                growth,
                share_start=start,
                share_raise=raised,
                share_decay=decay,
                share_min=minimum,
            ):
                rate, stats = simulate(load)
            print(
                f"| {load.name} | {name} | {rate:.0f} | {stats.preemptions_total} | "
                f"{stats.recomputed_tokens_total} |"
            )


if __name__ == "__main__":
    main()
