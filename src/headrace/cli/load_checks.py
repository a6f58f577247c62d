"""What `run` and `serve` look at once before they load a model for the first time."""

from pathlib import Path

from headrace.cli.output import note
from headrace.weights.cache import ModelCache, check_prefix, key_of
from headrace.weights.model_file import open_model
from headrace.weights.soundness import check_weights
from headrace.weights.sources import ResolvedModel


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
    cache.remember(key, f"{check_prefix}{model.path}", model.sha256)
