"""How fast is a prompt of 512 tokens computed, beside llama.cpp on the same file, type by type?

Makes a random-weight model of each type (bench/random_model.py), starts llama.cpp's server on it,
and lets both compute random prompts in turns, never at the same time. The medians of both rates and
of the turns' ratios are printed. llama.cpp says itself how long a prompt took; ours is one step of
512 rows.

    python bench/prefill_vs_llama.py TOKENIZER.gguf --peer-python PEERS/bin/python --isa avx2 \\
        --json docs/benchmarks/prefill.json
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from kernels import Case, Variant, batch_of, load
from peer_engines import ServedEngine, fetch, served
from random_model import blocks, shapes, types, write_model

from headrace import kernels
from headrace.engine.cpu_runner import CpuRunner

prompt_tokens = 512


@dataclass(frozen=True)
class Row:
    """One type's medians, in tokens a second."""

    type: str
    headrace: float
    llama: float
    ratio: float
    ratio_min: float
    ratio_max: float


def our_rate(runner: CpuRunner) -> float:
    """Of one step with the whole prompt."""
    batch = batch_of(Case("prefill", 1, prompt_tokens, 0), runner.info.vocab_size)
    start = time.perf_counter()
    runner.execute(batch)
    return prompt_tokens / (time.perf_counter() - start)


def their_rate(engine: ServedEngine, vocab_size: int, rng: np.random.Generator) -> float:
    """By the peer's own clock, so that HTTP is not in it."""
    prompt = rng.integers(100, vocab_size, prompt_tokens).tolist()
    body = {"prompt": prompt, "n_predict": 1, "cache_prompt": False}
    rate: float = fetch(f"{engine.url}/completion", body)["timings"]["prompt_per_second"]
    return rate


def compare(path: Path, peer_python: Path, isa: str, threads: int, turns: int) -> Row:
    """Both engines on one file."""
    server = Path(__file__).parent / "peers" / "llama_server.py"
    command = [str(peer_python), str(server), str(path), "--slots", "1", "--threads", str(threads)]
    with served("prefill", command, {}) as peer:
        runner, _ = load(path, Variant(isa), threads)
        rng = np.random.default_rng(0)
        ours, theirs = [], []
        for turn in range(turns + 1):
            mine, other = our_rate(runner), their_rate(peer, runner.info.vocab_size, rng)
            if turn > 0:  # the first is for the caches
                ours.append(mine)
                theirs.append(other)
        runner.close()
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    middle = statistics.median
    return Row(path.stem, middle(ours), middle(theirs), middle(ratios), min(ratios), max(ratios))


def main() -> None:
    """Read the arguments, compare type by type, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="a GGUF file whose tokenizer the models take")
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--type", action="append", choices=types)
    parser.add_argument("--size", default="small", choices=sorted(shapes))
    parser.add_argument("--isa", default="avx2", choices=kernels.isa_choices)
    parser.add_argument("--threads", type=int, default=kernels.default_thread_count())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'':8}{'headrace':>10}{'llama.cpp':>10}{'ratio':>7}  range")
    for name in arguments.type or list(blocks):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            kind = GGMLQuantizationType[name]
            write_model(arguments.tokenizer, path, kind, shapes[arguments.size])
            row = compare(
                path, arguments.peer_python, arguments.isa, arguments.threads, arguments.turns
            )
        print(
            f"{row.type:8}{row.headrace:10.0f}{row.llama:10.0f}{row.ratio:7.2f}  "
            f"{row.ratio_min:.2f} to {row.ratio_max:.2f}",
            flush=True,
        )
        rows.append(asdict(row))
    if arguments.json:
        result = {"size": arguments.size, "isa": arguments.isa, "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
