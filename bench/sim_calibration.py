"""Does the simulator tell the truth about this machine's CPU engine? Within 10% is the aim.

    python bench/sim_calibration.py MODEL.gguf [--rounds 3] [--steps STEPS.json] > table.md

The real engine core runs batches of requests in this process on one thread. The time of a step is
the CPU time that it took, the least of the rounds, so that other work on the machine matters
little; the clock that its times to first token are read from is the sum of those. The device's
time model is fitted to the steps of some batch sizes and prompt lengths. Then the simulator's two
engines run others, which the fit never saw, and are compared. `--steps` keeps the least times
in a file, so that rounds of several runs count together; `--rounds 0` only evaluates it.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace import kernels
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import StepBatch, StepResult, activation_bits_default
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.fleet.aggregate_engine import AggregateEngine
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.exact_engine import ExactEngine
from headrace.sim.fleet.histogram import Histogram
from headrace.sim.fleet.request import Segment, SimRequest, prefix_keys
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

step_rows = 128
sequences_max = 32
kv_tokens = 16_384
output_tokens = 32
fit_cells = (
    *((batch, 24) for batch in (1, 3, 6, 12, 16, 32)),
    *((1, 128), (1, 384), (4, 128), (4, 384), (12, 128)),
)
held_out = tuple(itertools.product((2, 8, 24), (64, 256)))
matrix_rows = (1, 3, 6, 16, 32, 128)  # the points of the matrices' time
vocabulary = 1000  # of the random prompts


@dataclass
class Served:
    """What a batch of requests that came at once got."""

    first_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def figures(self) -> tuple[float, float, float]:
        """Mean seconds to the first token, mean seconds between tokens, tokens a second."""
        count = len(self.first_s)
        between = (sum(self.end_s) - sum(self.first_s)) / (count * (output_tokens - 1))
        return sum(self.first_s) / count, between, count * output_tokens / max(self.end_s)


class Steps(msgspec.Struct):
    """The steps of one batch: what each had to do, and the tokens it gave by request."""

    features: list[tuple[int, int, float, float]] = []
    seconds: list[float] = []
    outputs: list[list[tuple[str, int]]] = []

    def served(self) -> Served:
        """Times on a clock that only these steps move."""
        served, counts, now_s = Served(), dict[str, int](), 0.0
        for seconds, outputs in zip(self.seconds, self.outputs, strict=True):
            now_s += seconds
            for name, tokens in outputs:
                if name not in counts:
                    served.first_s.append(now_s)
                counts[name] = counts.get(name, 0) + tokens
                if counts[name] == output_tokens:
                    served.end_s.append(now_s)
        return served


class WatchedRunner:
    """The real runner; remembers what a step had to do, as the device's model counts it."""

    def __init__(self, runner: CpuRunner) -> None:
        self._runner = runner
        self.info = runner.info
        self.work: tuple[int, int, float, float] | None = None

    def execute(self, batch: StepBatch) -> StepResult:
        rows = np.diff(batch.row_starts)
        contexts = batch.context_lens.astype(np.float64)
        chunks = np.where(rows > 1, rows, 0)
        pairs = float((chunks * (contexts - chunks / 2)).sum())
        self.work = (len(batch.token_ids), len(contexts), float(contexts.sum()), pairs)
        return self._runner.execute(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._runner.copy_blocks(pairs)

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        return self._runner.export_blocks(block_ids)

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        self._runner.import_blocks(block_ids, data)

    def close(self) -> None:
        self._runner.close()


class CpuClock:
    """Time that this thread computed for."""

    def monotonic_s(self) -> float:
        return time.thread_time()

    def wall_s(self) -> float:
        return time.thread_time()


def run_real(runner: WatchedRunner, batch: int, prompt: int) -> Steps:
    """Requests that came at once, through the real core, step by step."""
    core = EngineCore(runner, SchedulerConfig(None, step_rows=step_rows), CpuClock())
    rng = np.random.default_rng(batch * 1000 + prompt)
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens)
    for number in range(batch):
        tokens = tuple(int(token) for token in rng.integers(5, vocabulary, prompt))
        core.submit(EngineRequest(f"r{number}", tokens, sampling))
    steps = Steps()
    while core.has_work():
        runner.work = None
        begun_s = time.thread_time()
        outputs = core.step()
        seconds = time.thread_time() - begun_s
        if runner.work is None:
            continue
        steps.features.append(runner.work)
        steps.seconds.append(seconds)
        steps.outputs.append([(o.request_id, len(o.token_ids)) for o in outputs if o.token_ids])
    return steps


Measured = dict[str, Steps]  # by the name of a cell


def name_of(cell: tuple[int, int]) -> str:
    return "{} requests of {} tokens".format(*cell)


def measure(runner: WatchedRunner, best: Measured) -> None:
    """Run all cells once, and keep each step's least time."""
    for cell in (*fit_cells, *held_out):
        steps, known = run_real(runner, *cell), best.get(name_of(cell))
        if known is not None:
            assert steps.features == known.features, "the steps are not the same"
            pairs = zip(steps.seconds, known.seconds, strict=True)
            steps.seconds = [min(pair) for pair in pairs]
        best[name_of(cell)] = steps


def fit(measured: Sequence[Steps]) -> DeviceModel:
    """Least squares of relative errors, with no negative cost."""
    features = np.array([work for steps in measured for work in steps.features], np.float64)
    seconds = np.array([second for steps in measured for second in steps.seconds])
    design = np.column_stack([*hats(features[:, 0]), features[:, 1:]])
    relative, costs = design / seconds[:, None], np.zeros(design.shape[1])
    used = list(range(design.shape[1]))
    while True:
        found = np.linalg.lstsq(relative[:, used], np.ones(len(seconds)), rcond=None)[0]
        if found.min() >= 0:
            break
        used.pop(int(found.argmin()))
    costs[used] = found
    sequence_s, context_token_s, pair_s = map(float, costs[len(matrix_rows) :])
    return DeviceModel(
        source="fitted by bench/sim_calibration.py",
        fixed_s=0.0,
        matrix_points=tuple(zip(matrix_rows, map(float, costs), strict=False)),
        sequence_s=sequence_s,
        context_token_s=context_token_s,
        pair_s=pair_s,
        kv_tokens=kv_tokens,
        step_rows=step_rows,
        sequences_max=sequences_max,
    )


def hats(rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Each point's share of the time at `rows`: 1 at its own, 0 at and beyond its neighbours."""
    identity = np.eye(len(matrix_rows))
    return [np.interp(rows, matrix_rows, own) for own in identity]


class Listener:
    """Takes down when simulated requests get their tokens."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.served = Served()

    def first_token(self, attempt: Attempt) -> None:
        self.served.first_s.append(self._loop.now_s)

    def finished(self, attempt: Attempt) -> None:
        self.served.end_s.append(self._loop.now_s)


def run_simulated(
    kind: type[ExactEngine] | type[AggregateEngine], device: DeviceModel, batch: int, prompt: int
) -> Served:
    """The same batch on the virtual clock."""
    loop = EventLoop()
    listener = Listener(loop)
    engine = kind(loop, device, listener, Histogram(), prefix_cache=False)
    for number in range(batch):
        segments = (Segment(number + 1, prompt),)
        keys = prefix_keys(segments, 0)
        request = SimRequest(
            number, 0, 0, 0.0, segments, keys, prompt, output_tokens, output_tokens
        )
        loop.at(0.0, engine.submit, Attempt(request, 1))  # all of one moment, so of one step
    loop.run()
    return listener.served


def table(device: DeviceModel, measured: Measured, cells: Sequence[tuple[int, int]]) -> list[float]:
    """Print real and simulated figures; the relative errors of the exact engine's."""
    print("| requests at once | prompt | real TTFT, ITL, tok/s | exact engine | off by | "
          "aggregate engine | off by |\n|---|---|---|---|---|---|---|")  # fmt: skip
    errors: list[float] = []
    for batch, prompt in cells:
        real = measured[name_of((batch, prompt))].served().figures()
        columns = [str(batch), str(prompt), text(real)]
        for kind in (ExactEngine, AggregateEngine):
            told = run_simulated(kind, device, batch, prompt).figures()
            off = [said / was - 1.0 for said, was in zip(told, real, strict=True)]
            columns += [text(told), ", ".join(f"{each:+.1%}" for each in off)]
            if kind is ExactEngine:
                errors += off
        print("| " + " | ".join(columns) + " |", flush=True)
    return errors


def text(figures: tuple[float, float, float]) -> str:
    first_s, between_s, tokens_per_s = figures
    return f"{first_s * 1e3:,.0f} ms, {between_s * 1e3:.1f} ms, {tokens_per_s:,.0f}"


def load_runner(path: Path) -> WatchedRunner:
    with open_gguf(path) as file:
        runner = CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=kv_tokens,
            rows_max=step_rows,
            sequences_max=sequences_max,
            threads=1,
            activation_bits=activation_bits_default,
        )
    return WatchedRunner(runner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--isa", default="avx2", choices=kernels.isa_choices)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=Path)
    options = parser.parse_args()
    os.environ[kernels.isa_environment_variable] = options.isa
    measured: Measured = {}
    if options.steps and options.steps.exists():
        measured = msgspec.json.decode(options.steps.read_bytes(), type=Measured)
    runner = load_runner(options.model)
    for _ in range(options.rounds):
        measure(runner, measured)
        if options.steps:
            options.steps.write_bytes(msgspec.json.encode(measured))
    device = fit([measured[name_of(cell)] for cell in fit_cells])
    print(f"{options.model.name}, {options.isa}, one thread; fitted:",
          msgspec.json.encode(device).decode(), "\n\nHeld out:\n")  # fmt: skip
    errors = table(device, measured, held_out)
    worst = max(errors, key=abs)
    print(f"\nWorst of the exact engine's {len(errors)} figures: {worst:+.1%}.\n\nFitted on:\n")
    table(device, measured, fit_cells)
    if abs(worst) > 0.1:
        sys.exit("over 10%")


if __name__ == "__main__":
    main()
