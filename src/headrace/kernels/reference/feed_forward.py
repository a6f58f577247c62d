"""The feed-forward half of a layer, in float: one network, or experts chosen for each row."""

from collections.abc import Mapping
from math import erf

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.architecture import Activation, ArchitectureSpec
from headrace.kernels.reference.activation import swiglu
from headrace.kernels.reference.watched import WatchedTensors

Floats = NDArray[np.float32]
clamp_limit, clamp_slope = 7.0, 1.702  # of gpt-oss

_erf = np.vectorize(erf, otypes=[np.float64])


def activate(kind: Activation, gate: Floats, up: Floats) -> Floats:
    """The gate through its activation, times the other half."""
    wide = gate.astype(np.float64)
    match kind:
        case Activation.SILU:
            return swiglu(gate, up)
        case Activation.GELU_TANH:
            inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
            gelu = 0.5 * wide * (1 + np.tanh(inner))
            return np.asarray(gelu * up, np.float32)
        case Activation.GELU:
            gelu = 0.5 * wide * (1 + _erf(wide / np.sqrt(2)))
            return np.asarray(gelu * up, np.float32)
        case Activation.SILU_CLAMPED:
            low = np.minimum(wide, clamp_limit)
            sigmoid = np.exp(-np.logaddexp(0.0, -clamp_slope * low))
            other = np.clip(up, -clamp_limit, clamp_limit) + 1
            return (low * sigmoid * other).astype(np.float32)


def linear(tensors: Mapping[str, Floats], name: str, rows: Floats) -> Floats:
    """Rows through a matrix, with its bias where it has one."""
    if isinstance(tensors, WatchedTensors):
        tensors.note(name, rows)
    product = rows @ tensors[f"{name}.weight"].T
    bias = tensors.get(f"{name}.bias")
    return product if bias is None else product + bias


def feed_forward(
    spec: ArchitectureSpec, tensors: Mapping[str, Floats], layer: int, rows: Floats
) -> Floats:
    """What the network (or its experts) makes of normed rows; (R, hidden_size)."""
    prefix = f"blk.{layer}."
    if not spec.expert_count:
        return _network(spec, tensors, prefix, "", rows)
    logits = linear(tensors, f"{prefix}ffn_gate_inp", rows).astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    out = np.zeros_like(rows)
    for row, chances in enumerate(probabilities):
        chosen = np.argsort(-chances, kind="stable")[: spec.experts_used]
        weights = chances[chosen]
        if spec.expert_weights_normalized:
            weights = weights / weights.sum()
        for expert, weight in zip(chosen.tolist(), weights.tolist(), strict=True):
            answer = _network(spec, tensors, prefix, f".{expert}", rows[row : row + 1])[0]
            out[row] += np.float32(weight * spec.expert_weights_scale) * answer
    if spec.shared_expert_ffn_size:
        gate = tensors[f"{prefix}ffn_gate_inp_shexp.weight"]
        share = 1 / (1 + np.exp(-(rows.astype(np.float64) @ gate)))
        shared = _network(spec, tensors, prefix, "_shexp", rows)
        out += (share[:, None] * shared).astype(np.float32)
    return out


def _network(
    spec: ArchitectureSpec, tensors: Mapping[str, Floats], prefix: str, suffix: str, rows: Floats
) -> Floats:
    up = linear(tensors, f"{prefix}ffn_up{suffix}", rows)
    if spec.gated:
        gate = linear(tensors, f"{prefix}ffn_gate{suffix}", rows)
        hidden = activate(spec.activation, gate, up)
    else:
        hidden = activate(spec.activation, up, np.ones_like(up))
    return linear(tensors, f"{prefix}ffn_down{suffix}", hidden)
