"""`headrace bench engine MODEL`: prefill and decode against what this machine can do at most.

Memory bandwidth and integer rate are measured in the same run, by the same threads, so that each
share is of this machine at this moment. Decoding one sequence is bound by memory, prefill by
arithmetic; a share near 1 says that only another machine would be faster.

With `--json`: `model`, `kernel`, `activation_bits`, `threads`, `matrix_bytes`, `weights`,
`machine`, and lists `prefill` and `decode` of one object a size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.engine_report import (
    EngineBench,
    MachineRates,
    Sizes,
    decode_result,
    prefill_result,
    write_report,
)
from headrace.cli.engine_settings import (
    ActivationBits,
    ModelArgument,
    Threads,
    activation_width_default,
)
from headrace.cli.engine_timing import StepTimer
from headrace.cli.engine_work import ModelWork, model_work
from headrace.cli.model_files import resolve_model
from headrace.cli.packed_weights import packed_place
from headrace.cli.settings import AsJson, CacheDir
from headrace.engine.cpu_runner import CpuRunner
from headrace.kernels import default_thread_count, measure_matrix_gops, measure_memory_gbps
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model

batch_max = 1024
tokens_max = 1_000_000


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """How the model is computed."""

    threads: int
    activation_bits: Literal[8, 16]
    packed_path: Path | None


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("engine")(engine)


def engine(
    model: ModelArgument,
    cache_dir: CacheDir,
    *,
    threads: Threads = None,
    activation_bits: ActivationBits = activation_width_default,
    prompts: Annotated[str, typer.Option(help="Prompt lengths, in tokens.")] = "128,512",
    batches: Annotated[str, typer.Option(help="Sequences at a time.")] = "1,2,4,8,16,32",
    context_tokens: Annotated[
        int, typer.Option(help="Tokens that each sequence has before it decodes.")
    ] = 128,
    steps: Annotated[int, typer.Option(help="Timed steps of each batch size.")] = 32,
    repeats: Annotated[int, typer.Option(help="Timed prompts of each length.")] = 3,
    chunk_tokens: Annotated[int, typer.Option(help="Most tokens of one prefill step.")] = 512,
    as_json: AsJson = False,
) -> None:
    """Time the engine's prefill and decode, and show the share of this machine that they reach."""
    sizes = Sizes(
        prompts=parse_sizes("--prompts", prompts, tokens_max),
        batches=parse_sizes("--batches", batches, batch_max),
        context_tokens=in_bounds("--context-tokens", context_tokens, tokens_max),
        steps=in_bounds("--steps", steps, tokens_max),
        repeats=in_bounds("--repeats", repeats, 1000),
        rows_max=in_bounds("--chunk-tokens", chunk_tokens, 8192),
    )
    resolved = resolve_model(model, cache_dir)
    packed_path = packed_place(resolved, cache_dir)
    choice = RunnerChoice(threads or default_thread_count(), activation_bits.bits, packed_path)
    result = time_model(resolved.path, resolved.name, sizes, choice)
    if as_json:
        output.write_json(result)
    else:
        write_report(result)


def parse_sizes(option: str, text: str, most: int) -> list[int]:
    """Read `1,2,4`; ConfigurationError names what is wrong."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is not a list such as 1,2,4") from None
    return [in_bounds(option, size, most) for size in sizes]


def in_bounds(option: str, value: int, most: int) -> int:
    """The value, if it is from 1 to `most`."""
    if not 1 <= value <= most:
        raise ConfigurationError(f"{option}: {value} is not from 1 to {most:,}")
    return value


def time_model(path: Path, name: str, sizes: Sizes, choice: RunnerChoice) -> EngineBench:
    """Load a model, by its packed weights if it can, measure the machine, time every size."""
    with open_runner(path, sizes, choice) as (runner, work):
        used_bits = runner.info.activation_bits
        rates = MachineRates(
            measure_memory_gbps(choice.threads), measure_matrix_gops(choice.threads, used_bits)
        )
        timer = StepTimer(runner, SystemClock())
        return EngineBench(
            model=name,
            kernel=runner.info.kernel_name,
            activation_bits=used_bits,
            threads=choice.threads,
            matrix_bytes=work.matrix_bytes,
            weights=work.layer_weights + work.output_weights,
            machine=rates,
            prefill=[
                prefill_result(timer.prefill(length, sizes.repeats), work, rates)
                for length in sizes.prompts
            ],
            decode=[
                decode_result(
                    timer.decode(batch, sizes.context_tokens, sizes.steps), sizes, work, rates
                )
                for batch in sizes.batches
            ],
        )


@contextmanager
def open_runner(
    path: Path, sizes: Sizes, choice: RunnerChoice
) -> Iterator[tuple[CpuRunner, ModelWork]]:
    """The runner of a model file, with room for the largest size."""
    with open_model(path) as file:
        spec = read_architecture(file)
        if sizes.tokens_per_sequence > spec.context_length:
            raise ConfigurationError(
                f"the model's context is {spec.context_length:,} tokens, and the sizes need "
                f"{sizes.tokens_per_sequence:,}; ask for less with --prompts and --context-tokens"
            )
        runner = CpuRunner(
            file,
            spec,
            kv_tokens=sizes.kv_tokens,
            rows_max=max(sizes.rows_max, *sizes.batches),
            sequences_max=max(sizes.batches),
            threads=choice.threads,
            packed_path=choice.packed_path,
            activation_bits=choice.activation_bits,
        )
        with runner:
            kv_tokens = runner.info.num_blocks * runner.info.block_size_tokens
            kv_bytes_per_token = runner.kv_bytes // kv_tokens
            yield runner, model_work(spec, file.tensors, kv_bytes_per_token=kv_bytes_per_token)
