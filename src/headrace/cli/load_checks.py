"""What `run` and `serve` look at before a model may be asked: its numbers, and how it reads.

The numbers are read here, before the first load. The text is read by the engine process, which has
the model (engine_server/load_checks.py). What passed is remembered by the model's digest.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

import msgspec

from headrace.base.errors import SourceError
from headrace.cli.engine_settings import LoadCheck
from headrace.cli.output import note
from headrace.engine_server.messages import LoadProbe
from headrace.engine_server.service import ServiceConfig
from headrace.weights.cache import ModelCache, check_prefix, key_of
from headrace.weights.model_file import open_model
from headrace.weights.soundness import check_weights
from headrace.weights.sources import ResolvedModel


def with_load_checks(
    config: ServiceConfig,
    checks: LoadCheck,
    model: ResolvedModel,
    cache_dir: Path,
    draft: ResolvedModel | None = None,
) -> ServiceConfig:
    """The service that probes its model as it loads it; its numbers are checked now.

    ModelFileError as `check_numbers`, of the draft model too."""
    if checks is LoadCheck.OFF:
        return config
    for each in (model, draft):
        if each is not None:
            check_numbers(each, cache_dir)
    probe = LoadProbe(model.sha256, str(cache_dir), refuses_noise=checks is LoadCheck.REFUSE)
    return replace(config, engine=msgspec.structs.replace(config.engine, load_probe=probe))


def check_numbers(model: ResolvedModel, cache_dir: Path) -> None:
    """ModelFileError names a tensor with a number that is none; a model that passed is remembered.

    Cost: once, a pass over the scales of quantized weights, or over all of float ones."""
    cache = ModelCache(cache_dir)
    key = key_of(f"sound\0{model.sha256}")
    if cache.find(key) is not None:
        return
    with open_model(model.path) as file:
        for remark in check_weights(file.tensors):
            note(remark)
    with contextlib.suppress(SourceError):  # a cache that takes nothing: looked at each time
        cache.remember(key, f"{check_prefix}{model.path}", model.sha256)
