"""What the library peers share: questions on standard input, figures on standard output.

A line in is {"prompts": [...], "concurrency": n, "output_tokens": m}; a line out has the figures of
`peer_engines.Figures`. The first line out says that the model is loaded.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The benchmarks' `kernels` is not the package of that name, which Transformers looks for.
benchmarks = Path(__file__).resolve().parents[1]
sys.path[:] = [place for place in sys.path if Path(place).resolve() != benchmarks]


@dataclass
class Answer:
    """When an answer was asked for, began and ended, on one clock, in seconds."""

    asked_s: float
    first_s: float
    last_s: float
    tokens: int


Run = Callable[[list[str], int, int], list[Answer]]  # prompts, concurrency, output tokens


def serve(load: Callable[[], Run]) -> None:
    """Load, then answer questions until the input ends."""
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print goes to the log
    run = load()
    run(["Hello"], 1, 2)
    print(json.dumps({"ready": 1}), file=answers_to, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        found = run(asked["prompts"], asked["concurrency"], asked["output_tokens"])
        print(json.dumps(figures(found)), file=answers_to, flush=True)


def figures(answers: list[Answer]) -> dict[str, float]:
    """Tokens a second over all, and the answers' latencies."""
    seconds = max(answer.last_s for answer in answers) - min(answer.asked_s for answer in answers)
    waits = sorted((answer.first_s - answer.asked_s) * 1e3 for answer in answers)
    steps = [
        (answer.last_s - answer.first_s) * 1e3 / (answer.tokens - 1)
        for answer in answers
        if answer.tokens > 1
    ]
    return {
        "output_tokens_per_s": sum(answer.tokens for answer in answers) / seconds,
        "ttft_p50_ms": statistics.median(waits),
        "ttft_p99_ms": waits[min(len(waits) - 1, int(0.99 * len(waits)))],
        "itl_p50_ms": statistics.median(steps) if steps else 0.0,
    }
