"""What an engine process loads: the model's runner, and the draft model that guesses for it.

A draft model must have the same tokens by the same ids, or its guesses would mean something else.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.engine.draft_model import DraftModel
from headrace.engine.placement import Placement, anywhere
from headrace.engine.ranks import RankPlace, alone
from headrace.engine.runner import ModelRunner
from headrace.engine_server.devices import (
    machine_devices,
    placement_of,
    stay_on,
    threads_of_rank,
)
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.rank_processes import RankProcesses, end_engine
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.model_file import open_model
from headrace.weights.packed_cache import path_of_rank

if TYPE_CHECKING:
    from headrace.engine.cpu_runner import CpuRunner

ReportLoading = Callable[[str, float], None]
Opened = TypeVar("Opened")
draft_rows_max = 128  # of one step of the draft model: a prompt's chunk
draft_progress = 0.8  # of the start
spare_tokens_max = 512  # that only one of two models of a family has
out_of_memory = (
    "There is not enough memory for this model and its KV cache; lower --kv-tokens, or use a "
    "smaller model."
)


def load_cpu_runner(config: EngineConfig, report: ReportLoading) -> ModelRunner:
    """Open the model file and put it on this machine's CPU, with other ranks if there are to be.

    A rank that ends later ends this process."""
    return with_ranks(config, report, lambda place: open_runner(config, report, place))


def with_ranks(
    config: EngineConfig, report: ReportLoading, open_rank: Callable[[RankPlace], Opened]
) -> Opened:
    """What this process opens as the first rank, or alone; the other ranks are ready with it.

    A rank that ends later ends this process."""
    if config.tensor_parallel == 1:
        return open_rank(alone)
    others = RankProcesses(config)
    try:
        opened = open_rank(others.place)
        report(f"waiting for {config.tensor_parallel} ranks", 0.9)
        others.wait_ready()
    except BaseException:
        others.close()
        raise
    others.watch(end_engine)
    return opened


def open_runner(config: EngineConfig, report: ReportLoading, place: RankPlace) -> "CpuRunner":
    """One rank's part of the model, or with a single rank all of it, in this process."""
    # These imports are the slow part of the start; they belong to the progress that is reported.
    from headrace.engine.cpu_runner import CpuRunner  # noqa: PLC0415
    from headrace.weights.architecture_reader import read_architecture  # noqa: PLC0415

    report("reading the model file", 0.05)
    with open_model(Path(config.model_path)) as file:
        spec = read_architecture(file)
        if config.context_length is not None:
            check_context_length(config, config.context_length, spec.context_length)
            spec = dataclasses.replace(spec, context_length=config.context_length)
        placement, threads = settle(config, spec, place)
        report("loading weights", 0.1)
        return CpuRunner(
            file,
            placement.spec,
            kv_tokens=config.kv_tokens,
            rows_max=config.step_rows,
            sequences_max=config.step_rows,  # a draft's row is a sequence of its own to it
            threads=threads,
            kv_cache_dtype=config.kv_cache_dtype,
            activation_bits=config.activation_bits,
            adapters_max=config.adapters_max,
            adapter_rank_max=config.adapter_rank_max,
            packed_path=_packed_path(config, place, len(placement.devices)),
            place=place,
            devices=placement.devices,
        )


def settle(
    config: EngineConfig, spec: ArchitectureSpec, place: RankPlace
) -> tuple[Placement, int | None]:
    """Where this process computes, and on how many threads; None: as many as there are cores.

    One of several ranks stays on its device from now on. ConfigurationError if the model or this
    machine does not allow what is configured."""
    placement = placement_of(config, spec, machine_devices())
    if place.ranks == 1:
        return placement, config.threads
    threads = threads_of_rank(config, place.rank, placement.devices)
    stay_on(placement.devices[place.rank])
    return dataclasses.replace(placement, devices=(anywhere,)), threads


def _packed_path(config: EngineConfig, place: RankPlace, device_count: int) -> Path | None:
    """None with several devices: each keeps its part in memory of its own."""
    if config.packed_path is None or device_count > 1:
        return None
    return path_of_rank(Path(config.packed_path), place.rank, place.ranks)


def load_draft_model(
    config: EngineConfig, report: ReportLoading, runner: ModelRunner, clock: Clock
) -> DraftModel | None:
    """The draft model with as much KV as the large one has; None if there is to be none.

    ConfigurationError if its tokens are not the model's."""
    # As above.
    from headrace.engine.cpu_runner import CpuRunner  # noqa: PLC0415
    from headrace.weights.architecture_reader import read_architecture  # noqa: PLC0415

    if config.draft_model_path is None or not config.draft_tokens_max:
        return None
    check_vocabularies(Path(config.model_path), Path(config.draft_model_path))
    report("loading the draft model", draft_progress)
    with open_model(Path(config.draft_model_path)) as file:
        spec = read_architecture(file)
        context_length = min(spec.context_length, runner.info.max_model_len)
        draft_runner = CpuRunner(
            file,
            dataclasses.replace(spec, context_length=context_length),
            kv_tokens=config.kv_tokens,
            rows_max=max(draft_rows_max, config.sequences_max),
            sequences_max=config.sequences_max,
            threads=_draft_threads(config),
            kv_cache_dtype=config.kv_cache_dtype,
            activation_bits=config.activation_bits,
            packed_path=_path_of(config.draft_packed_path),
        )
    return DraftModel(draft_runner, clock, runner.info.vocab_size)


def _draft_threads(config: EngineConfig) -> int | None:
    """Of ranks, the first alone runs the draft model, on its own threads."""
    if config.tensor_parallel == 1 or config.threads is None:
        return config.threads
    return max(1, config.threads // config.tensor_parallel)


def check_vocabularies(model_path: Path, draft_path: Path) -> None:
    """Refuse a draft model that writes other tokens; one may have unused ids beyond the other's."""
    with open_model(model_path) as file, open_model(draft_path) as draft_file:
        model = Tokenizer.from_gguf_metadata(file.metadata)
        draft = Tokenizer.from_gguf_metadata(draft_file.metadata)
    shared = min(model.vocab_size, draft.vocab_size)
    differing = next(
        (id_ for id_ in range(shared) if model.token_bytes(id_) != draft.token_bytes(id_)), None
    )
    spare = abs(model.vocab_size - draft.vocab_size)
    if differing is None and spare <= spare_tokens_max and model.eos_ids == draft.eos_ids:
        return
    reason = (
        f"token {differing} is {model.token_bytes(differing)!r} in the one and "
        f"{draft.token_bytes(differing)!r} in the other"
        if differing is not None
        else f"they have {model.vocab_size} and {draft.vocab_size} tokens, and end answers with "
        f"{sorted(model.eos_ids)} and {sorted(draft.eos_ids)}"
    )
    raise ConfigurationError(
        f"--draft-model {draft_path.name} has another vocabulary than {model_path.name}: {reason}. "
        "Take a smaller model of the same family."
    )


def check_context_length(config: EngineConfig, wanted: int, model_limit: int) -> None:
    """Refuse a context that the model or the KV cache cannot hold, rather than lower it."""
    if wanted > model_limit:
        raise ConfigurationError(
            f"--context-length is {wanted}, but this model was made for {model_limit} tokens; "
            "give at most that."
        )
    if wanted > config.kv_tokens:
        raise ConfigurationError(
            f"--context-length is {wanted}, but the KV cache holds {config.kv_tokens} tokens; "
            "lower it, or raise --kv-tokens."
        )


def blocks_of(token_count: int | None, block_size_tokens: int) -> int | None:
    """Whole blocks of so many tokens, at least one."""
    return None if token_count is None else max(1, token_count // block_size_tokens)


def _path_of(text: str | None) -> Path | None:
    return None if text is None else Path(text)
