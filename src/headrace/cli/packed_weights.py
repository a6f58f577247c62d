"""Lets an engine keep its packed weights in the model cache, so that the next start maps them."""

from dataclasses import replace
from pathlib import Path

import msgspec

from headrace.engine_server.service import ServiceConfig
from headrace.kernels import packed_layout
from headrace.weights.cache import ModelCache
from headrace.weights.packed_cache import packed_path
from headrace.weights.sources import ResolvedModel


def with_packed_weights(
    config: ServiceConfig, model: ResolvedModel, cache_dir: Path
) -> ServiceConfig:
    """The service with a place for packed weights, if the cache has room for them."""
    path = packed_path(
        ModelCache(cache_dir),
        model.sha256,
        packed_layout(),
        _size_bytes(model.path),
        config.engine.tensor_parallel,
    )
    if path is None:
        return config
    return replace(config, engine=msgspec.structs.replace(config.engine, packed_path=str(path)))


def _size_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    return path.stat().st_size
