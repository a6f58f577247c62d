"""LoRA adapters on the command line: which to load, how many, how large."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import ProgressBar
from headrace.cli.settings import Setting
from headrace.engine_server.messages import LoadAdapter
from headrace.engine_server.service import ServiceConfig
from headrace.weights.file_use import hold_for_life
from headrace.weights.lora.adapter import rank_max_default
from headrace.weights.lora.opening import check_adapter_name, find_adapter

max_loras_default = 8
max_loras_max = 256
rank_limit = 512

max_loras = Setting(
    "max-loras", int, max_loras_default, "LoRA adapters that can be loaded at once; 0: none."
)
max_lora_rank = Setting(
    "max-lora-rank", int, rank_max_default, "The highest rank of a LoRA adapter."
)
lora_help = (
    "A LoRA adapter as NAME=PATH, which requests ask for as MODEL:NAME; can be repeated. PATH is a "
    "GGUF file, a directory in PEFT's layout, or an https://, hf:// or pypi:// reference of a GGUF "
    "file."
)

Loras = Annotated[list[str] | None, typer.Option("--lora", metavar="NAME=PATH", help=lora_help)]
MaxLoras = Annotated[int, max_loras.option()]
MaxLoraRank = Annotated[int, max_lora_rank.option()]


def with_adapters(
    config: ServiceConfig, loras: list[str] | None, count_max: int, rank_max: int, cache_dir: Path
) -> ServiceConfig:
    """The service with adapters; fetches those that are not on this machine.

    ConfigurationError names the option that is wrong, SourceError what is not there."""
    if not 0 <= count_max <= max_loras_max:
        raise ConfigurationError(f"--max-loras is {count_max}; it must be 0 to {max_loras_max}.")
    if not 1 <= rank_max <= rank_limit:
        raise ConfigurationError(f"--max-lora-rank is {rank_max}; it must be 1 to {rank_limit}.")
    texts = loras or []
    if len(texts) > count_max:
        raise ConfigurationError(
            f"{len(texts)} adapters are given and --max-loras is {count_max}; raise it."
        )
    adapters = tuple(_adapter(text, cache_dir) for text in texts)
    names = [adapter.name for adapter in adapters]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"--lora names {name} twice; give each a name of its own.")
    engine = msgspec.structs.replace(
        config.engine, adapters=adapters, adapters_max=count_max, adapter_rank_max=rank_max
    )
    return replace(config, engine=engine)


def _adapter(text: str, cache_dir: Path) -> LoadAdapter:
    name, equals, reference = text.partition("=")
    if not equals or not reference:
        raise ConfigurationError(f"--lora {text}: write it as NAME=PATH.")
    progress = ProgressBar()
    try:
        path = find_adapter(reference, cache_dir, progress)
    finally:
        progress.finish()
    for file in path.iterdir() if path.is_dir() else [path]:
        hold_for_life(file)  # an engine that is started again reads it anew
    return LoadAdapter("", check_adapter_name(name), str(path))
