"""Adapters as GGUF files in llama.cpp's layout: `blk.N.MATRIX.weight.lora_a` and `.lora_b`."""

import re
from pathlib import Path

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.kernels.architecture import ArchitectureSpec
from headrace.kernels.reference.dequantize import dequantize
from headrace.weights.families import families
from headrace.weights.gguf import GgufFile, open_gguf
from headrace.weights.huggingface.tensor_map import tensor_of
from headrace.weights.lora.adapter import (
    AdapterPart,
    LoraAdapter,
    LowRankPair,
    adapter_of,
    cut,
    digest_of,
    fail,
    float_types,
    model_targets,
    no_layer,
)
from headrace.weights.tensor import Tensor, TensorType

pair_pattern = re.compile(
    r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<matrix>\w+)\.weight\.lora_(?P<half>[ab])"
)


def open_gguf_adapter(path: Path, spec: ArchitectureSpec, rank_max: int) -> LoraAdapter:
    """The adapter in a file; ModelFileError says what is wrong or not computed."""
    with open_gguf(path) as file:
        alpha = _check_kind(file, spec, path)
        halves: dict[tuple[int, str], dict[str, Tensor]] = {}
        for name, tensor in file.tensors.items():
            found = pair_pattern.fullmatch(name)
            is_of_model = found is not None and found["layer"] is None
            if found is None or (is_of_model and found["matrix"] not in model_targets):
                fail(path, f"tensor {name}", "is no matrix that is adapted here")
            matrix = families[spec.family].tensor_names.get(found["matrix"], found["matrix"])
            layer = no_layer if is_of_model else int(found["layer"])
            halves.setdefault((layer, matrix), {})[found["half"]] = _floats(tensor)
        parts: list[AdapterPart] = []
        for (layer, matrix), half in halves.items():
            name = matrix if layer == no_layer else f"blk.{layer}.{matrix}"
            if len(half) != 2:
                fail(path, name, "has only one of lora_a and lora_b; the file is damaged")
            rank = half["b"].shape[-1]
            scale = alpha / rank if alpha else 1.0
            pair = LowRankPair(name, layer, matrix, scale, half["a"], half["b"])
            parts.extend(cut(spec, pair, path))
        return adapter_of(path, digest_of(path), parts, rank_max)


def _check_kind(file: GgufFile, spec: ArchitectureSpec, path: Path) -> float:
    """The adapter's alpha, 0 where it has none; refuses what is no LoRA adapter of the family."""
    metadata = file.metadata
    if metadata.get("general.type") != "adapter":
        fail(path, "general.type", "the file is a model and no adapter")
    kind = metadata.get("adapter.type")
    if kind != "lora":
        fail(path, "adapter.type", f"{kind!r} is not served; lora is")
    if "adapter.alora.invocation_tokens" in metadata:
        fail(path, "adapter.alora.invocation_tokens", "activated adapters are not computed")
    family = metadata.get("general.architecture")
    if family != spec.family:
        fail(path, "general.architecture", f"the adapter is for {family}, the model {spec.family}")
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float) or not np.isfinite(alpha):
        fail(path, "adapter.lora.alpha", "is not a number")
    return float(alpha)


def _floats(tensor: Tensor) -> Tensor:
    """The tensor as it is, or if it is quantized, as floats."""
    if tensor.type in float_types:
        return tensor
    try:
        values = dequantize(int(tensor.type), tensor.data, tensor.shape)
    except ValueError as error:
        raise ModelFileError(
            f"tensor {tensor.name} is {tensor.type.name}, which adapters are not read from; "
            "convert it to F16.",
            field=f"tensor {tensor.name}",
        ) from error
    return tensor_of(tensor.name, TensorType.F32, values)
