"""Adapters as PEFT saves them: a directory with adapter_config.json and adapter_model.safetensors.

What would change the answers and is not computed (DoRA, whole matrices saved beside, biases) is
refused by name. Beside an adapted embedding or output matrix PEFT saves the model's own, which was
not trained: it is passed over. B's rows for queries and keys are put into the model's own
order (huggingface/tensor_map.py).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.kernels.architecture import ArchitectureSpec, RopeStyle
from headrace.weights.huggingface.directory import read_json
from headrace.weights.huggingface.safetensors_file import read_safetensors
from headrace.weights.huggingface.tensor_map import (
    layer_names,
    layer_pattern,
    prefixes,
    tensor_of,
    values_of,
)
from headrace.weights.lora.adapter import (
    AdapterPart,
    LoraAdapter,
    LowRankPair,
    adapter_of,
    cut,
    digest_of,
    fail,
    no_layer,
)
from headrace.weights.tensor import Tensor

config_name = "adapter_config.json"
weights_name = "adapter_model.safetensors"
saved_prefix = "base_model.model."
pair_pattern = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(?:\.default)?(?:\.weight)?"
)
model_modules = {"embed_tokens": "token_embd", "lm_head": "output"}
refused_tensors = {
    ".lora_magnitude_vector": "is of DoRA, which scales the whole matrix and is not computed; "
    "train or convert it as plain LoRA",
    ".bias": "is a trained bias, which is not computed; train with bias='none'",
}
saved_whole = (
    "is a whole matrix that was trained beside the adapter (modules_to_save); serve the merged "
    "model instead"
)


class AdapterConfig(msgspec.Struct, rename={"rank": "r"}):
    """What is read of adapter_config.json."""

    rank: int
    lora_alpha: float
    peft_type: str = "LORA"
    use_rslora: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    fan_in_fan_out: bool = False
    modules_to_save: list[str] | None = None
    bias: str = "none"
    lora_bias: bool = False
    alpha_pattern: dict[str, float] = {}
    layer_replication: list[object] | None = None
    trainable_token_indices: object = None
    alora_invocation_tokens: list[int] | None = None
    target_parameters: list[str] | None = None
    target_modules: list[str] | str | None = None
    ensure_weight_tying: bool = False


@dataclass(slots=True)
class _Halves:
    """A and B of one module, as they are found."""

    down: Tensor | None = None
    up: Tensor | None = None


def open_peft_adapter(path: Path, spec: ArchitectureSpec, rank_max: int) -> LoraAdapter:
    """The adapter in a directory; ModelFileError says what is wrong or not computed."""
    config = _read_config(path / config_name)
    weights = path / weights_name
    if not weights.is_file():
        fail(path, weights_name, "is missing; pickled adapters (.bin) are not read, save it anew")
    parts: list[AdapterPart] = []
    tensors = _without_copies(spec, config, weights, read_safetensors(weights))
    for module, halves in _pairs(weights, tensors).items():
        pair = _pair(spec, config, module, halves, weights)
        parts.extend(cut(spec, pair, weights))
    return adapter_of(path, digest_of(path / config_name, weights), parts, rank_max)


def is_peft_adapter(path: Path) -> bool:
    """Whether a directory looks like one."""
    return (path / config_name).is_file()


def _read_config(path: Path) -> AdapterConfig:
    try:
        config = msgspec.convert(read_json(path), AdapterConfig)
    except msgspec.ValidationError as error:
        fail(path, config_name, f"is not PEFT's ({error})")
    if config.peft_type.upper() != "LORA":
        fail(path, "peft_type", f"{config.peft_type} is not served; LORA is")
    if config.use_dora:
        fail(path, "use_dora", refused_tensors[".lora_magnitude_vector"])
    if config.modules_to_save:
        fail(path, "modules_to_save", f"{', '.join(config.modules_to_save)} {saved_whole}")
    refusals = {
        "use_qalora": config.use_qalora,
        "fan_in_fan_out": config.fan_in_fan_out,
        "bias": config.bias != "none",
        "lora_bias": config.lora_bias,
        "layer_replication": config.layer_replication,
        "trainable_token_indices": config.trainable_token_indices,
        "alora_invocation_tokens": config.alora_invocation_tokens,
        "target_parameters": config.target_parameters,
        "ensure_weight_tying": config.ensure_weight_tying,
    }
    for field, is_used in refusals.items():
        if is_used:
            fail(path, field, "is not computed, and leaving it out would change the answers")
    if config.rank < 1 or not math.isfinite(config.lora_alpha):
        fail(path, "r", "r and lora_alpha must be positive numbers")
    return config


def _without_copies(
    spec: ArchitectureSpec, config: AdapterConfig, path: Path, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What was trained: without the embedding and the output matrix that PEFT saves beside it
    where one of them is adapted. Refuses a matrix of another vocabulary than the model's."""
    wanted = config.target_modules or ()
    names = [wanted] if isinstance(wanted, str) else wanted
    has_copies = any(name in module for name in names for module in model_modules)
    kept = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight").removesuffix(".base_layer").rpartition(".")[2]
        if not has_copies or not name.endswith(".weight") or stem not in model_modules:
            kept[name] = tensor
        elif tensor.shape != (spec.vocab_size, spec.hidden_size):
            fail(
                path,
                f"tensor {name}",
                f"is {tensor.shape}: the vocabulary was changed; serve the merged model instead",
            )
    return kept


def _pairs(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, _Halves]:
    pairs: dict[str, _Halves] = {}
    for name, tensor in tensors.items():
        found = pair_pattern.fullmatch(name)
        if found is None:
            reasons = (text for part, text in refused_tensors.items() if part in name)
            fail(path, f"tensor {name}", next(reasons, saved_whole))
        halves = pairs.setdefault(found["module"], _Halves())
        if found["half"] == "B":
            halves.up = tensor
        elif found["embedding"]:  # (rank, tokens) there
            halves.down = tensor_of(name, tensor.type, values_of(tensor).T)
        else:
            halves.down = tensor
    return pairs


def _pair(
    spec: ArchitectureSpec, config: AdapterConfig, module: str, halves: _Halves, path: Path
) -> LowRankPair:
    if halves.down is None or halves.up is None:
        fail(path, module, "has only one of lora_A and lora_B; the file is damaged")
    name = module.removeprefix(saved_prefix)
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    layer = layer_pattern.fullmatch(name)
    matrix = layer_names.get(layer[2]) if layer else model_modules.get(name)
    if matrix is None:
        fail(
            path,
            module,
            "is a module that is not adapted here: attention's, the MLP's, the embedding and the "
            "output matrix are",
        )
    up = _in_stored_order(spec, matrix, halves.up)
    return LowRankPair(
        name=module,
        layer=int(layer[1]) if layer else no_layer,
        matrix=matrix,
        scale=_scale(config, module, halves.up.shape[-1]),
        down=halves.down,
        up=up,
    )


def _scale(config: AdapterConfig, module: str, rank: int) -> float:
    """By the module's own rank, which rank_pattern may have changed; alpha may have its own too."""
    alpha = config.lora_alpha
    for pattern, value in config.alpha_pattern.items():
        if module.endswith(f".{pattern}") or re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            alpha = value
            break
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _in_stored_order(spec: ArchitectureSpec, matrix: str, up: Tensor) -> Tensor:
    """B with its rows as the model's file has those of the matrix."""
    head_counts = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}
    heads = head_counts.get(matrix)
    if heads is None or spec.rope_style is not RopeStyle.ADJACENT or up.shape[0] % (2 * heads):
        return up
    values = values_of(up)
    turned = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2)
    return tensor_of(up.name, up.type, turned.reshape(values.shape))
