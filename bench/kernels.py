"""How fast does the CPU runner prefill and decode, by instruction set, at which share of limits?

    python bench/kernels.py MODEL.gguf [--isa avx2 --isa avxvnni --isa avx512] [--activation-bits 16
        --activation-bits 8] [--case "decode 1"] [--rounds 5]

Rounds of all cases are interleaved over the instruction sets and activation bits, and each figure
is the best round's, because other work on a shared machine only ever slows a step down. Shares are
of the memory bandwidth (as many threads over 512 MiB, in each round) and of the cached 4-bit kernel
rate with as many activation bits; both are engines' defaults unless given.
A model that the last cache holds can have more than all of that bandwidth; the first line says so.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headrace import kernels
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import ActivationBits, StepBatch, activation_bits_default
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

prefill_lengths = (128, 512)
decode_batches = (1, 2, 4, 8, 16, 32)
context_tokens = 128  # of each sequence that decodes
table_blocks = 48  # of the one prefilled sequence, and of each decoding one: they may share
decode_steps = 8  # of one round


@dataclass(frozen=True)
class Case:
    """One measured step shape; `context` tokens are in KV before it."""

    name: str
    sequences: int
    rows: int  # of each sequence
    context: int


@dataclass
class Result:
    """The best step of a case; operations count a multiply-add as two."""

    isa: str
    activation_bits: int
    case: str
    tokens_per_s: float
    step_ms: float
    gbps: float  # of weights
    bandwidth_share: float
    gops: float
    matrix_share: float


def cases() -> list[Case]:
    prefill = [Case(f"prefill {n}", 1, n, 0) for n in prefill_lengths]
    return prefill + [Case(f"decode {n}", n, 1, context_tokens) for n in decode_batches]


def batch_of(case: Case, vocab_size: int) -> StepBatch:
    rng = np.random.default_rng(case.sequences)
    n = case.sequences
    return StepBatch(
        token_ids=rng.integers(0, vocab_size, n * case.rows, dtype=np.int32),
        row_starts=np.arange(n + 1, dtype=np.int32) * np.int32(case.rows),
        context_lens=np.full(n, case.context + case.rows, np.int32),
        block_ids=np.tile(np.arange(table_blocks, dtype=np.int32), n),
        block_starts=np.arange(n + 1, dtype=np.int32) * np.int32(table_blocks),
        sampled=np.arange(n, dtype=np.int32),
        temperature=np.zeros(n, np.float32),
        top_k=np.zeros(n, np.int32),
        top_p=np.ones(n, np.float32),
        min_p=np.zeros(n, np.float32),
        seed=np.zeros(n, np.uint64),
        position=np.zeros(n, np.int64),
    )


def operations_of(case: Case, spec: ArchitectureSpec) -> float:
    """Of all matrix products of one step; attention is left out."""
    width, head_width = spec.hidden_size, spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    layer = 2 * width * head_width + 3 * width * spec.ffn_size
    rows = case.sequences * case.rows
    return 2.0 * (rows * spec.num_layers * layer + case.sequences * width * spec.vocab_size)


def best_step_s(runner: CpuRunner, case: Case) -> float:
    batch = batch_of(case, runner.info.vocab_size)
    times = []
    for _ in range(1 if case.rows > 1 else decode_steps):
        start = time.perf_counter()
        runner.execute(batch)
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class Variant:
    """What a model is computed with."""

    isa: str
    activation_bits: ActivationBits = activation_bits_default


def load(path: Path, variant: Variant, threads: int) -> tuple[CpuRunner, ArchitectureSpec]:
    os.environ[kernels.isa_environment_variable] = variant.isa
    with open_gguf(path) as file:
        spec = read_architecture(file)
        runner = CpuRunner(
            file,
            spec,
            kv_tokens=2048,
            rows_max=512,
            sequences_max=32,
            threads=threads,
            activation_bits=variant.activation_bits,
        )
    return runner, spec


def last_cache_bytes() -> int:
    """Of the first core's largest cache; 0 where the system does not say."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 1 << 10, "M": 1 << 20}
    texts = [size.read_text().strip() for size in sizes]
    return max((int(text[:-1]) * units[text[-1]] for text in texts), default=0)


def measure(
    path: Path, variants: Sequence[Variant], chosen: Sequence[Case], rounds: int, threads: int
) -> list[Result]:
    runners = {variant: load(path, variant, threads) for variant in variants}
    best: dict[tuple[Variant, str], float] = {}
    bandwidth_gbps = 0.0
    rate_gops = dict.fromkeys(variants, 0.0)
    for _ in range(rounds):
        bandwidth_gbps = max(bandwidth_gbps, kernels.measure_memory_gbps(threads))
        for variant in variants:
            os.environ[kernels.isa_environment_variable] = variant.isa
            rate = kernels.measure_matrix_gops(threads, variant.activation_bits)
            rate_gops[variant] = max(rate_gops[variant], rate)
        for case in chosen:
            for variant, (runner, _) in runners.items():
                key = (variant, case.name)
                best[key] = min(best.get(key, float("inf")), best_step_s(runner, case))
    results = []
    for variant, (runner, spec) in runners.items():
        for case in chosen:
            seconds = best[variant, case.name]
            gbps = runner.weight_bytes / seconds / 1e9
            gops = operations_of(case, spec) / seconds / 1e9
            results.append(
                Result(
                    isa=runner.info.kernel_name,
                    activation_bits=runner.info.activation_bits,
                    case=case.name,
                    tokens_per_s=case.sequences * case.rows / seconds,
                    step_ms=seconds * 1e3,
                    gbps=gbps,
                    bandwidth_share=gbps / bandwidth_gbps,
                    gops=gops,
                    matrix_share=gops / rate_gops[variant],
                )
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--isa", action="append", choices=kernels.isa_choices)
    parser.add_argument("--activation-bits", action="append", type=int, choices=(8, 16))
    parser.add_argument("--case", action="append", choices=[case.name for case in cases()])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=kernels.default_thread_count())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    chosen = [case for case in cases() if case.name in (arguments.case or case.name)]
    variants = [
        Variant(isa, bits)
        for isa in arguments.isa or ["avx2"]
        for bits in arguments.activation_bits or [activation_bits_default]
    ]
    results = measure(arguments.model, variants, chosen, arguments.rounds, arguments.threads)
    print(
        f"{arguments.model.name}, {arguments.model.stat().st_size / 1e6:,.0f} MB; last cache "
        f"{last_cache_bytes() / 1e6:,.0f} MB; {arguments.threads} threads"
    )
    print(
        f"{'kernels':12} bits {'case':12} {'tok/s':>7} {'ms':>8} {'GB/s':>6} {'GOP/s':>6}  shares"
    )
    for r in results:
        print(
            f"{r.isa:12} {r.activation_bits:4} {r.case:12} {r.tokens_per_s:7.0f} "
            f"{r.step_ms:8.2f} {r.gbps:6.1f} {r.gops:6.0f}  "
            f"memory {r.bandwidth_share:4.0%}, matrix {r.matrix_share:4.0%}"
        )
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps({"model": arguments.model.name, "results": rows}))


if __name__ == "__main__":
    main()
