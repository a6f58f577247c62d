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
    config: ServiceConfig,
    model: ResolvedModel,
    cache_dir: Path,
    draft: ResolvedModel | None = None,
) -> ServiceConfig:
    """The service with a place for the packed weights of its models, where the cache has room."""
    places = {"packed_path": packed_place(model, cache_dir, config.engine.tensor_parallel)}
    if draft is not None:
        places["draft_packed_path"] = packed_place(draft, cache_dir)
    texts = {field: None if path is None else str(path) for field, path in places.items()}
    return replace(config, engine=msgspec.structs.replace(config.engine, **texts))


def packed_place(model: ResolvedModel, cache_dir: Path, ranks: int = 1) -> Path | None:
    """Where a model's packed weights are or may be put; None if the cache has no room."""
    size_bytes = _size_bytes(model.path)
    return packed_path(ModelCache(cache_dir), model.sha256, packed_layout(), size_bytes, ranks)


def _size_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    return path.stat().st_size
