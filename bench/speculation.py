"""What guessing the next tokens brings: the same requests with and without, in one process.

    python bench/speculation.py MODEL.gguf [--draft-model SMALL.gguf] [--clients 1 4] [--rounds 3]

`repeat` goes on with text that the prompt already has, `code` with code full of patterns, `free`
answers a question in its own words, `schema` in JSON by a schema. Time is the CPU time of one
compute thread, so that other programs do not matter. Pairs of runs are interleaved; the median of
their ratios is given. The tokens must be equal, greedy and sampled (--temperature). Guesses are
made from n-grams, or by another model.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.draft_model import DraftModel
from headrace.engine.request import EngineRequest, EngineStats, SamplingParams
from headrace.engine.runner import activation_bits_default
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.grammars import GrammarCompiler
from headrace.engine_server.loading import check_vocabularies
from headrace.engine_server.messages import Grammar
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
    "schema": "The mill as JSON:\n",
}
schema = {
    "type": "array",
    "minItems": 8,
    "items": {
        "type": "object",
        "properties": {
            "part_of_the_mill": {"enum": ["wheel", "stone", "gate"]},
            "diameter_in_metres": {"type": "integer", "minimum": 1, "maximum": 20},
            "needs_repair": {"type": "boolean"},
        },
        "required": ["part_of_the_mill", "diameter_in_metres", "needs_repair"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True)
class Work:
    """What is compared."""

    runner: CpuRunner
    draft_runner: CpuRunner | None
    tokens: int
    temperature: float
    compiler: GrammarCompiler


class CpuClock:
    """This process's CPU time."""

    def monotonic_s(self) -> float:
        return time.process_time()

    def wall_s(self) -> float:
        return time.time()


def run(
    work: Work, prompt: list[int], grammar: Grammar | None, clients: int, draft_tokens_max: int
) -> tuple[float, list[list[int]], EngineStats]:
    """Tokens a second, the tokens, the counters."""
    config = SchedulerConfig(b"k" * 32, sequences_max=32, draft_tokens_max=draft_tokens_max)
    clock = CpuClock()
    proposer = None
    if work.draft_runner is not None:
        proposer = DraftModel(work.draft_runner, clock, work.runner.info.vocab_size)
    core = EngineCore(work.runner, config, clock, proposer)
    tokens = work.tokens
    answers: list[list[int]] = [[] for _ in range(clients)]
    for index in range(clients):
        sampling = SamplingParams(work.temperature, seed=index, max_tokens=tokens)
        constraint = None if grammar is None else work.compiler.compile(grammar)
        core.submit(EngineRequest(str(index), tuple(prompt), sampling, constraint=constraint))
    started_s = clock.monotonic_s()
    while core.has_work():
        for output in core.step():
            answers[int(output.request_id)] += output.token_ids
    seconds = clock.monotonic_s() - started_s
    return sum(map(len, answers)) / seconds, answers, core.stats()


def compare(
    work: Work, name: str, prompt: list[int], clients: int, drafts: int, rounds: int
) -> dict[str, float]:
    """The ratio with to without, and how many guesses were right."""
    grammar = None
    if name == "schema":
        grammar = Grammar("json_schema", json.dumps(schema), "schema")
    ratios = []
    for _ in range(rounds):
        without, plain, _ = run(work, prompt, grammar, clients, 0)
        speed, guessed, stats = run(work, prompt, grammar, clients, drafts)
        if plain != guessed:
            sys.exit("the tokens differ: that is a defect")
        ratios.append(speed / without)
    drafted, accepted = sum(stats.drafted_by_position), sum(stats.accepted_by_position)
    return {
        "ratio": round(statistics.median(ratios), 2),
        "without_tokens_per_s": round(without),
        "with_tokens_per_s": round(speed),
        "right_share": round(accepted / drafted, 2) if drafted else 0.0,
        "drafted_a_token": round(drafted / (clients * work.tokens), 2),
    }


def load(path: Path, stack: ExitStack) -> tuple[Tokenizer, CpuRunner]:
    """A model on one thread, until the stack ends."""
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
        runner = CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=16_384,
            rows_max=rows_max,
            sequences_max=rows_max,
            threads=1,
            activation_bits=activation_bits_default,
        )
    return tokenizer, stack.enter_context(runner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        tokenizer, runner = load(arguments.model, stack)
        draft_runner = None
        if arguments.draft_model is not None:
            check_vocabularies(arguments.model, arguments.draft_model)
            _, draft_runner = load(arguments.draft_model, stack)
        compiler = GrammarCompiler(arguments.model, runner.info.vocab_size)
        work = Work(runner, draft_runner, arguments.tokens, arguments.temperature, compiler)
        for name, text in prompts.items():
            prompt = tokenizer.encode(text)
            for clients in arguments.clients:
                row = compare(work, name, prompt, clients, arguments.drafts, arguments.rounds)
                print(json.dumps({"prompt": name, "clients": clients, **row}), flush=True)


if __name__ == "__main__":
    main()
