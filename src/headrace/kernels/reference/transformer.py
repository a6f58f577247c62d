"""A whole model of any family in float: logits for every position of one token sequence.

Per layer: h += W_o attention(rope(W_q n), rope(W_k n), W_v n) with n = norm(h), then
h += W_down activation(W_gate n, W_up n) with n = norm(h); families norm and scale elsewhere too
(`headrace.kernels.architecture`). Tensors go by their GGUF names, one matrix each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.architecture import ArchitectureSpec, NormPlacement, QueryKeyNorm
from headrace.kernels.reference.attention_families import AttentionRule, attend
from headrace.kernels.reference.feed_forward import feed_forward, linear
from headrace.kernels.reference.norm import rms_norm
from headrace.kernels.reference.rope import turn
from headrace.kernels.rotation import Rotation, rotations_of

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]  # matrices as (outputs, inputs)
# (layer, queries, keys, values) -> what each query sees: over the rows themselves, or a cache.
Attention = Callable[[int, Floats, Floats, Floats], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What the layers compute with."""

    spec: ArchitectureSpec
    tensors: Tensors
    rotations: Sequence[Rotation]


def forward(spec: ArchitectureSpec, tensors: Tensors, token_ids: Sequence[int]) -> Floats:
    """The logits after each token; (len(token_ids), vocab_size). Cost: O(tokens squared)."""
    hidden = hidden_states(spec, tensors, token_ids)
    return output_logits(spec, tensors, hidden)


def hidden_states(spec: ArchitectureSpec, tensors: Tensors, token_ids: Sequence[int]) -> Floats:
    """The hidden state of each token after the last layer; (len(token_ids), hidden_size)."""
    positions = np.arange(len(token_ids), dtype=np.int64)

    def attention(layer: int, queries: Floats, keys: Floats, values: Floats) -> Floats:
        return attend(queries, keys, values, attention_rule(spec, tensors, layer))

    model = Model(spec, tensors, rotations_of(spec, tensors, spec.context_length))
    hidden = embed(spec, tensors, np.asarray(token_ids), positions)
    for layer in range(spec.num_layers):
        hidden = run_layer(model, layer, hidden, positions, attention)
    return hidden


def attention_rule(spec: ArchitectureSpec, tensors: Tensors, layer: int) -> AttentionRule:
    """What one layer's rows see."""
    return AttentionRule(
        scale=spec.attention_scale,
        window_tokens=spec.layer(layer).window_tokens,
        softcap=spec.attention_softcap,
        sinks=tensors.get(f"blk.{layer}.attn_sinks.weight"),
        causal=not spec.encoder,
    )


def embed(
    spec: ArchitectureSpec,
    tensors: Tensors,
    token_ids: NDArray[np.integer],  # (R,)
    positions: NDArray[np.int64],  # (R,)
) -> Floats:
    """The hidden state that the layers begin with; (R, hidden_size)."""
    rows = tensors["token_embd.weight"][token_ids].astype(np.float32)
    hidden: Floats = rows * np.float32(spec.embedding_scale)
    if not spec.encoder:
        return hidden
    hidden = hidden + tensors["position_embd.weight"][positions] + tensors["token_types.weight"][0]
    return norm(spec, tensors, "token_embd_norm", hidden)


def output_logits(spec: ArchitectureSpec, tensors: Tensors, hidden: Floats) -> Floats:
    """The logits of rows of the last layer."""
    normed = norm(spec, tensors, "output_norm", hidden)
    matrix = tensors["token_embd.weight" if spec.tied_output else "output.weight"]
    logits = (normed @ matrix.T) * np.float32(spec.logit_scale)
    if spec.logit_softcap:
        logits = spec.logit_softcap * np.tanh(logits / spec.logit_softcap)
    return np.asarray(logits, np.float32)


def run_layer(
    model: Model,
    layer: int,
    hidden: Floats,  # (R, hidden_size)
    positions: NDArray[np.int64],  # (R,)
    attention: Attention,
) -> Floats:
    """The hidden state behind one layer."""
    spec, tensors = model.spec, model.tensors
    before, behind = _norm_names(spec, layer)

    def branch(index: int, compute: Callable[[Floats], Floats]) -> Floats:
        rows = norm(spec, tensors, before[index], hidden) if before else hidden
        added = compute(rows)
        if spec.norm_placement in (NormPlacement.BOTH, NormPlacement.BRANCH):
            added = norm(spec, tensors, behind[index], added)
        total = hidden + np.float32(spec.residual_scale) * added
        if spec.norm_placement is NormPlacement.AFTER:
            total = norm(spec, tensors, behind[index], total)
        return total

    def attention_branch(rows: Floats) -> Floats:
        heads = query_key_value(model, layer, rows, positions)
        mixed = attention(layer, *heads).reshape(len(rows), -1)
        return linear(tensors, f"blk.{layer}.attn_output", mixed)

    hidden = branch(0, attention_branch)
    return branch(1, lambda rows: feed_forward(spec, tensors, layer, rows))


def query_key_value(
    model: Model,
    layer: int,
    normed: Floats,  # (R, hidden_size)
    positions: NDArray[np.int64],  # (R,)
) -> tuple[Floats, Floats, Floats]:
    """Rotated queries and keys, and values; each (R, heads, head_dim)."""
    spec, tensors = model.spec, model.tensors
    prefix = f"blk.{layer}."

    def heads(name: str, count: int) -> Floats:
        return linear(tensors, prefix + name, normed).reshape(len(normed), count, spec.head_dim)

    def turned(name: str, count: int) -> Floats:
        rows = heads(name, count)
        if spec.query_key_norm is not QueryKeyNorm.NONE:
            whole = spec.query_key_norm is QueryKeyNorm.WHOLE
            parts = rows.reshape(len(rows), -1) if whole else rows
            weight = tensors[f"{prefix}{name}_norm.weight"]
            rows = rms_norm(parts, weight, spec.norm_epsilon).reshape(rows.shape)
        index = spec.layer(layer).rotation
        if index < 0 or not model.rotations:
            return rows
        rotation = model.rotations[index]
        return turn(
            rows,
            positions[:, None] * rotation.frequencies,
            style=spec.rope_style,
            magnitude=rotation.magnitude,
        )

    return (
        turned("attn_q", spec.num_heads),
        turned("attn_k", spec.num_kv_heads),
        heads("attn_v", spec.num_kv_heads),
    )


def norm(spec: ArchitectureSpec, tensors: Tensors, name: str, rows: Floats) -> Floats:
    """The spec's kind of norm with the weights of that name."""
    weight = tensors[f"{name}.weight"]
    if not spec.layer_norm:
        return rms_norm(rows, weight, spec.norm_epsilon)
    wide = rows.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    scaled = centred / np.sqrt(variance + spec.norm_epsilon)
    return np.asarray(scaled * weight + tensors[f"{name}.bias"], np.float32)


def _norm_names(spec: ArchitectureSpec, layer: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the norms before and behind the two branches."""
    prefix = f"blk.{layer}."
    before = (prefix + "attn_norm", prefix + "ffn_norm")
    behind = (prefix + "post_attention_norm", prefix + "post_ffw_norm")
    match spec.norm_placement:
        case NormPlacement.BEFORE:
            return before, ()
        case NormPlacement.BOTH:
            return before, behind
        case NormPlacement.BRANCH:
            return (), behind
        case NormPlacement.AFTER:
            return (), (prefix + "attn_output_norm", prefix + "layer_output_norm")
