"""What guessing the next tokens brings: the same requests with and without, in one process.

    python bench/speculation.py MODEL.gguf [--clients 1 4] [--tokens 128] [--rounds 3]

`repeat` goes on with text that the prompt already has, `code` with code full of patterns, `free`
answers a question in its own words. Time is the CPU time of one compute thread, so that other
programs do not matter. Pairs of runs are interleaved; the median of their ratios is given. The
tokens must be equal.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.request import EngineRequest, EngineStats, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

rows_max = 128
passage = (
    "The miller opens the gate at dawn. Water runs down the headrace, fills the buckets, and the "
    "wheel begins to turn. At noon the gate is half closed. In the evening the wheel stands still."
)
setters = """    def set_{0}(self, {0}):
        if {0} is None:
            raise ValueError("{0} is missing")
        self._{0} = {0}

"""
prompts = {
    "repeat": f"{passage}\n{passage}\n{passage}\n",
    "code": "class Mill:\n" + "".join(setters.format(name) for name in ("gate", "wheel", "stone")),
    "free": "A short story about a miller who loses his hat.\n\n",
}


class CpuClock:
    """This process's CPU time."""

    def monotonic_s(self) -> float:
        return time.process_time()

    def wall_s(self) -> float:
        return time.time()


def run(
    runner: CpuRunner, prompt: list[int], clients: int, tokens: int, draft_tokens_max: int
) -> tuple[float, list[list[int]], EngineStats]:
    """Tokens a second, the tokens, the counters."""
    config = SchedulerConfig(b"k" * 32, sequences_max=32, draft_tokens_max=draft_tokens_max)
    clock = CpuClock()
    core = EngineCore(runner, config, clock)
    answers: list[list[int]] = [[] for _ in range(clients)]
    for index in range(clients):
        sampling = SamplingParams(temperature=0.0, seed=index, max_tokens=tokens)
        core.submit(EngineRequest(str(index), tuple(prompt), sampling))
    started_s = clock.monotonic_s()
    while core.has_work():
        for output in core.step():
            answers[int(output.request_id)] += output.token_ids
    seconds = clock.monotonic_s() - started_s
    return clients * tokens / seconds, answers, core.stats()


def compare(
    runner: CpuRunner, prompt: list[int], clients: int, tokens: int, drafts: int, rounds: int
) -> dict[str, float]:
    """The ratio with to without, and how many guesses were right."""
    ratios = []
    for _ in range(rounds):
        without, plain, _ = run(runner, prompt, clients, tokens, 0)
        speed, guessed, stats = run(runner, prompt, clients, tokens, drafts)
        if plain != guessed:
            sys.exit("the tokens differ: that is a defect")
        ratios.append(speed / without)
    drafted, accepted = sum(stats.drafted_by_position), sum(stats.accepted_by_position)
    return {
        "ratio": round(statistics.median(ratios), 2),
        "without_tokens_per_s": round(without),
        "with_tokens_per_s": round(speed),
        "right_share": round(accepted / drafted, 2) if drafted else 0.0,
        "drafted_a_token": round(drafted / (clients * tokens), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with open_gguf(arguments.model) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
        runner = CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=16_384,
            rows_max=rows_max,
            sequences_max=rows_max,
            threads=1,
        )
    with runner:
        for name, text in prompts.items():
            prompt = tokenizer.encode(text)
            for clients in arguments.clients:
                row = compare(
                    runner, prompt, clients, arguments.tokens, arguments.drafts, arguments.rounds
                )
                print(json.dumps({"prompt": name, "clients": clients, **row}), flush=True)


if __name__ == "__main__":
    main()
