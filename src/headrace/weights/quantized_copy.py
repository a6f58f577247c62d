"""A model in another type, made once and kept in the cache: what `--quantize` loads.

The copy is a blob like any other, found again by the source's digest and the type. It is written
tensor by tensor, so that a model larger than memory can be quantized.
"""

import hashlib
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.weights.cache import ModelCache, chunk_bytes, key_of
from headrace.weights.gguf import GgufFile
from headrace.weights.model_file import ModelFile, open_model
from headrace.weights.progress import Progress
from headrace.weights.quantize import quantize_model
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType

quantizer_version = 1  # another number makes every copy anew
# Weights of more bits than any target; fewer were rounded once, and would be rounded again.
source_types = frozenset((TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q8_0))


def quantized_copy(
    model: ResolvedModel, target: TensorType, cache_dir: Path, progress: Progress
) -> ResolvedModel:
    """The model with its matrices as `target`, from the cache or made there.

    ConfigurationError for a GGUF file whose weights have fewer bits already. Cost: as
    `quantize_model`, once; then nothing."""
    cache = ModelCache(cache_dir)
    key = key_of(f"{model.sha256}\0{target.name}\0{quantizer_version}")
    if (found := _kept(cache, key, model)) is not None:
        return found
    with open_model(model.path) as file:
        if _is_all(file, target):
            return model
        _check_source(file, target)
        with cache.lock(key):
            # Another process may have made it while this one waited.
            if (found := _kept(cache, key, model)) is not None:
                return found
            partial = cache.partial_path(key)
            quantize_model(file, partial, target, progress, name=model.name)
            sha256 = _digest(partial)
            blob = cache.adopt(partial, sha256)
            origin = f"{model.path} as {target.name}"
            cache.remember(key, origin, sha256, quantizer=quantizer_version)
    return ResolvedModel(blob, sha256, model.name)


def _kept(cache: ModelCache, key: str, model: ResolvedModel) -> ResolvedModel | None:
    sha256 = cache.find(key)
    if sha256 is None or not cache.blob_path(sha256).is_file():
        return None
    return ResolvedModel(cache.blob_path(sha256), sha256, model.name)


def _is_all(file: ModelFile, target: TensorType) -> bool:
    """Whether a GGUF file's layers are in that type already; a directory is always converted."""
    kinds = {
        tensor.type
        for name, tensor in file.tensors.items()
        if name.startswith("blk.") and len(tensor.shape) > 1
    }
    return isinstance(file, GgufFile) and kinds == {target}


def _check_source(file: ModelFile, target: TensorType) -> None:
    if not isinstance(file, GgufFile):
        return
    for name, tensor in file.tensors.items():
        if len(tensor.shape) > 1 and tensor.type not in source_types:
            raise ConfigurationError(
                f"--quantize {target.name.lower()}: tensor {name} of {file.path} is in "
                f"{tensor.type.name} already, and rounding it again would lose more; leave the "
                "option out, or name a file of float weights."
            )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            digest.update(chunk)
    return digest.hexdigest()
