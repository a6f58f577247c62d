"""A model directory in Hugging Face's layout, opened as a model file.

config.json                                       shapes and constants
model.safetensors                                 weights, or
model.safetensors.index.json + model-*-of-*       weights in several files
tokenizer.json, tokenizer_config.json,
chat_template.jinja, generation_config.json       the tokenizer, read where they are there
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.huggingface.config import ConfigReading, read_config
from headrace.weights.huggingface.pooling_file import read_pooling
from headrace.weights.huggingface.quantization import weights_of
from headrace.weights.huggingface.safetensors_file import StoredTensor, read_stored
from headrace.weights.huggingface.tensor_map import map_tensors, tensor_of
from headrace.weights.huggingface.tokenizer_file import read_tokenizer_metadata
from headrace.weights.huggingface.word_piece_file import word_piece_keys
from headrace.weights.tensor import Tensor, TensorType

config_name = "config.json"
weights_name = "model.safetensors"
index_name = "model.safetensors.index.json"
json_bytes_max = 64 << 20
shards_max = 1_000
image_parts = ("vision_tower.", "multi_modal_projector.")  # of a model of text and images


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """An open directory: metadata under GGUF's keys, tensors under GGUF's names."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    notes: Sequence[str] = ()  # for people: how quantized weights are kept


def open_directory(path: Path) -> ModelDirectory:
    """Map the weights and translate the rest; ModelFileError says what is missing or wrong."""
    config = read_json(path / config_name)
    reading = read_config(config, path / config_name)
    tensors, notes = weights_of(_read_tensors(path), config, path / config_name)
    if isinstance(config.get("text_config"), dict):
        text = {name: part for name, part in tensors.items() if not _is_for_images(name)}
        if len(text) < len(tensors):
            notes = [*notes, "weights for images are left out: text alone is read and written"]
        tensors = text
    if config.get("tie_word_embeddings", False) or reading.family.encoder:
        tensors.pop("lm_head.weight", None)
    mapped = map_tensors(tensors, reading.family, _head_counts(reading))
    for name, values in reading.rope_divisors.items():
        mapped[name] = tensor_of(name, TensorType.F32, np.array(values, np.float32))
    metadata = dict(reading.metadata)
    if reading.family.encoder:  # served with the directory's own tokenizer.json
        metadata[f"{reading.family.name}.pooling_type"] = read_pooling(path)
        metadata[f"{reading.family.name}.attention.causal"] = False
        metadata |= word_piece_keys(path)
    else:
        metadata |= read_tokenizer_metadata(path, config)
    return ModelDirectory(path, metadata, mapped, notes)


def is_model_directory(path: Path) -> bool:
    """Whether a directory looks like one."""
    return (path / config_name).is_file()


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that make the model up, in the index's order."""
    if not (path / index_name).is_file():
        return [path / weights_name]
    places = read_json(path / index_name).get("weight_map")
    if not isinstance(places, dict) or not places:
        _fail(path / index_name, "weight_map", "is missing")
    for name in places.values():
        if not isinstance(name, str) or not name or Path(name).name != name:
            _fail(path / index_name, "weight_map", f"{name!r} is not a file beside the index")
    names = list(dict.fromkeys(places.values()))
    if len(names) > shards_max:
        _fail(path / index_name, "weight_map", f"{len(names)} files; {shards_max} are allowed")
    return [path / name for name in names]


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of the directory."""
    try:
        if path.stat().st_size > json_bytes_max:
            _fail(path, path.name, f"is over {json_bytes_max >> 20} MiB")
        value = json.loads(path.read_bytes())
    except OSError as error:
        _fail(path, path.name, f"cannot be read ({error.strerror})")
    except (ValueError, RecursionError) as error:
        _fail(path, path.name, f"is not JSON ({error})")
    if not isinstance(value, dict):
        _fail(path, path.name, "is not a JSON object")
    return value


def _is_for_images(name: str) -> bool:
    return name.removeprefix("model.").startswith(image_parts)


def _read_tensors(path: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(path):
        for name, tensor in read_stored(file).items():
            if name in tensors:
                _fail(file, f"tensor {name}", "stands in two files")
            tensors[name] = tensor
    return tensors


def _head_counts(reading: ConfigReading) -> dict[str, int]:
    prefix = f"{reading.family.name}.attention."
    heads = reading.metadata.get(f"{prefix}head_count")
    kv_heads = reading.metadata.get(f"{prefix}head_count_kv", heads)
    if type(heads) is not int or type(kv_heads) is not int or min(heads, kv_heads) < 1:
        raise ModelFileError("config.json: num_attention_heads is not a count.", field="heads")
    return {"attn_q": heads, "attn_k": kv_heads}


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(f"{path}: {field}: {problem}.", file=str(path), field=field)
