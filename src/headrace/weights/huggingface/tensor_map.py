"""From Hugging Face's tensors to those of a GGUF file: names, the order of rows, the kind of norm.

What is stored in another way (rows of Q and K where pairs are adjacent, Gemma's norms, which are
stored less one, gpt-oss's transposed experts) is made when it is asked for; all else stays where
the file maps it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import NormPlacement, RopeStyle
from headrace.weights.families import Family
from headrace.weights.tensor import Bytes, Tensor, TensorType

Bits = NDArray[np.generic]
layer_pattern = re.compile(r"(?:encoder\.)?layers?\.(\d+)\.(.+)")
prefixes = ("language_model.model.", "model.language_model.", "model.", "bert.", "language_model.")
left_out = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
left_out_ending = (
    "rotary_emb.inv_freq"  # of config.json's numbers; Llama 2's files have them stored
)
outer_names = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
layer_names = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.experts.gate_up_proj": "gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
float_kinds: Mapping[TensorType, type[np.generic]] = {
    TensorType.F32: np.float32,
    TensorType.F16: np.float16,
    TensorType.BF16: np.uint16,
}
expert_pattern = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.(weight|bias)")
expert_names = {
    **{"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"},
    **{"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"},
}


def map_tensors(
    tensors: Mapping[str, Tensor], family: Family, head_counts: Mapping[str, int]
) -> dict[str, Tensor]:
    """All tensors under GGUF's names. `head_counts`: heads of "attn_q" and "attn_k".

    ModelFileError naming a tensor that has no place in the family."""
    mapped: dict[str, Tensor] = {}
    for tensor in tensors.values():
        for part in _mapped(tensor, family):
            mapped[part.name] = _as_stored(part, family, head_counts)
    return mapped


def values_of(tensor: Tensor) -> Bits:
    """A tensor's numbers in its shape: float32, float16, or the bits of bfloat16 as uint16.

    Of a quantized tensor the bytes of each row stand for its last dimension."""
    if tensor.type not in float_kinds:
        return tensor.data.reshape(*tensor.shape[:-1], -1)
    return tensor.data.view(float_kinds[tensor.type]).reshape(tensor.shape)


def as_float(tensor: Tensor) -> NDArray[np.float32]:
    """A float tensor's numbers as float32."""
    values = values_of(tensor)
    if tensor.type is TensorType.BF16:
        wide: NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
        return wide
    return values.astype(np.float32)


def tensor_of(name: str, tensor_type: TensorType, values: Bits) -> Tensor:
    """A tensor of an array that is not in a file."""
    return Tensor(name, tensor_type, values.shape, _bytes(values))


def _bytes(values: Bits) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _changed(
    tensor: Tensor, name: str, shape: tuple[int, ...], change: Callable[[Bits], Bits]
) -> Tensor:
    """A tensor of another's numbers, taken when they are asked for."""
    return Tensor(name, tensor.type, shape, lambda: _bytes(change(values_of(tensor))))


def _mapped(tensor: Tensor, family: Family) -> Iterator[Tensor]:
    name = tensor.name
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    if name in left_out or name.endswith(left_out_ending):
        return
    layer = layer_pattern.fullmatch(name)
    if layer is None:
        stem, _, kind = name.rpartition(".")
        if stem not in outer_names:
            _refuse(tensor, family)
        yield replace(tensor, name=f"{outer_names[stem]}.{kind}")
        return
    index, rest = layer.groups()
    prefix = f"blk.{index}."
    if expert := expert_pattern.fullmatch(rest):
        number, part, kind = expert.groups()
        if part not in expert_names:
            _refuse(tensor, family)
        yield replace(tensor, name=f"{prefix}{expert_names[part]}.{number}.{kind}")
        return
    stem, kind = rest, "weight"
    for ending in (".weight", ".bias", "_bias"):
        if rest.endswith(ending):
            stem, kind = rest.removesuffix(ending), ending[1:]
    found = layer_names.get(stem)
    if found is None:
        _refuse(tensor, family)
    if stem == "post_attention_layernorm" and family.norm_placement is not NormPlacement.BEFORE:
        found = "post_attention_norm"
    if found in ("gate_up_exps", "ffn_down_exps"):
        yield from _experts(tensor, prefix, found, kind, family)
        return
    found = next((file for file, ours in family.tensor_names.items() if ours == found), found)
    yield replace(tensor, name=f"{prefix}{found}.{kind}")


def _experts(
    tensor: Tensor, prefix: str, found: str, kind: str, family: Family
) -> Iterator[Tensor]:
    """All experts of a layer in one block; gpt-oss has (inputs, outputs), gates between ups."""
    if len(tensor.shape) != (3 if kind == "weight" else 2):
        _refuse(tensor, family)
    turned = family.sinks and kind == "weight"
    parts = {"ffn_down": slice(None)}
    if found != "ffn_down_exps":
        outputs = tensor.shape[2 if turned else 1]
        halves = (slice(0, outputs // 2), slice(outputs // 2, None))
        gates, ups = (slice(0, None, 2), slice(1, None, 2)) if family.sinks else halves
        parts = {"ffn_gate": gates, "ffn_up": ups}
    for expert in range(tensor.shape[0]):
        for part, rows in parts.items():
            yield _expert_part(tensor, f"{prefix}{part}.{expert}.{kind}", expert, rows, turned)


def _expert_part(tensor: Tensor, name: str, expert: int, rows: slice, turned: bool) -> Tensor:
    """Some outputs of one expert of a block of all."""
    sides = tensor.shape[1:][::-1] if turned else tensor.shape[1:]
    shape = (len(range(*rows.indices(sides[0]))), *sides[1:])

    def change(values: Bits) -> Bits:
        block: Bits = values[expert]
        return block.T[rows] if turned else block[rows]

    return _changed(tensor, name, shape, change)


def _as_stored(tensor: Tensor, family: Family, head_counts: Mapping[str, int]) -> Tensor:
    """The tensor as a GGUF file of the family has it."""
    stem = tensor.name.split(".")[-2]
    if stem == "ffn_gate_inp_shexp":
        tensor = replace(tensor, shape=(tensor.value_count,))
    if stem in head_counts and family.rope_style is RopeStyle.ADJACENT:
        count = head_counts[stem]
        if not tensor.shape or tensor.shape[0] % (2 * count):
            raise ModelFileError(
                f"tensor {tensor.name} is {tensor.shape}, and config.json says {count} heads.",
                field=f"tensor {tensor.name}",
            )

        def pairs_adjacent(values: Bits) -> Bits:
            heads = values.reshape(count, 2, -1, *values.shape[1:])
            return heads.swapaxes(1, 2).reshape(values.shape)

        tensor = _changed(tensor, tensor.name, tensor.shape, pairs_adjacent)
    if len(tensor.shape) == 1:
        vector = as_float(tensor)
        if family.embedding_by_root and stem.endswith("norm"):
            vector = vector + 1
        tensor = tensor_of(tensor.name, TensorType.F32, vector)
    return tensor


def _refuse(tensor: Tensor, family: Family) -> NoReturn:
    raise ModelFileError(
        f"tensor {tensor.name} is not part of a {family.name} model that headrace computes; "
        "leaving it out would change the answers.",
        field=f"tensor {tensor.name}",
    )
