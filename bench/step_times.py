"""What does a decode step cost with 1 to 32 rows? No row should cost more than its neighbours.

CPU time of one thread, the best of interleaved rounds, so that other work on the machine matters
little. Few rows take more steps a round, since a best of more time is a better one:

    python bench/step_times.py MODEL.gguf --isa avx2 --json OUT.json --plot OUT.svg
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from kernels import Case, Variant, batch_of, load

from headrace import kernels
from headrace.engine.runner import activation_bits_default

rows_max = 32
context_tokens = 128
steps_min, steps_max = 3, 32  # of one round


def measure(model: Path, variant: Variant, rounds: int) -> list[float]:
    """Milliseconds of a step with 1, 2, ... rows."""
    runner, _ = load(model, variant, threads=1)
    batches = [
        batch_of(Case("", rows, 1, context_tokens), runner.info.vocab_size)
        for rows in range(1, rows_max + 1)
    ]
    best = [float("inf")] * rows_max
    for _ in range(rounds):
        for index, batch in enumerate(batches):
            for _ in range(max(steps_min, steps_max // (index + 1))):
                start = time.thread_time()
                runner.execute(batch)
                best[index] = min(best[index], (time.thread_time() - start) * 1e3)
    return best


def plot(step_ms: list[float], title: str, path: Path) -> None:
    """Step time and time a row, over rows."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 -- where a plot is wanted

    rows = range(1, len(step_ms) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(rows, step_ms, marker=".")
    left.set(xlabel="rows", ylabel="milliseconds a step", ylim=(0, None))
    right.plot(rows, [ms / n for n, ms in zip(rows, step_ms, strict=True)], marker=".")
    right.set(xlabel="rows", ylabel="milliseconds a row", ylim=(0, None))
    figure.suptitle(title)
    figure.savefig(path)


def show(step_ms: list[float]) -> None:
    """Print a line for each count of rows, as far as anybody reads them."""
    try:
        for rows, ms in enumerate(step_ms, 1):
            extra = ms - step_ms[rows - 2] if rows > 1 else ms
            print(f"{rows:3} rows {ms:8.2f} ms, {ms / rows:6.2f} a row, {extra:+6.2f} for the last")
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has enough; the files are written all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--isa", default="avx2", choices=kernels.isa_choices)
    parser.add_argument(
        "--activation-bits", type=int, default=activation_bits_default, choices=(8, 16)
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    variant = Variant(arguments.isa, arguments.activation_bits)
    step_ms = measure(arguments.model, variant, arguments.rounds)
    show(step_ms)
    if arguments.json:
        rows_ms = [round(ms, 3) for ms in step_ms]
        result = {"model": arguments.model.name, **asdict(variant), "step_ms": rows_ms}
        arguments.json.write_text(json.dumps(result) + "\n")
    if arguments.plot:
        title = f"{arguments.model.stem}, {variant.isa}, {variant.activation_bits}-bit activations"
        plot(step_ms, f"{title}, one thread", arguments.plot)


if __name__ == "__main__":
    main()
