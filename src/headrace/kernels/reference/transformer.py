"""A whole llama-family model in float: logits for every position of one token sequence.

Per layer: h += W_o attention(rope(W_q n), rope(W_k n), W_v n) with n = rms_norm(h), then
h += W_down swiglu(W_gate n, W_up n) with n = rms_norm(h). Tensors go by their GGUF names.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference.activation import swiglu
from headrace.kernels.reference.attention import causal_attention
from headrace.kernels.reference.norm import rms_norm
from headrace.kernels.reference.rope import rotate

Floats = NDArray[np.float32]


class TransformerSpec(Protocol):
    """The shapes and constants that the forward pass reads; `weights.ArchitectureSpec` is one."""

    @property
    def num_layers(self) -> int:
        """Transformer blocks."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads; each serves num_heads / num_kv_heads query heads."""
        ...

    @property
    def head_dim(self) -> int:
        """Values of one head."""
        ...

    @property
    def norm_epsilon(self) -> float:
        """Added to the mean square."""
        ...

    @property
    def rope_style(self) -> str:
        """Adjacent pairs or halves."""
        ...

    @property
    def rope_dimensions(self) -> int:
        """Rotated values of a head."""
        ...

    @property
    def rope_theta(self) -> float:
        """Base of the rotation frequencies."""
        ...

    @property
    def rope_scale(self) -> float:
        """Positions are divided by it."""
        ...

    @property
    def tied_output(self) -> bool:
        """The output matrix is the token embedding."""
        ...


def forward(
    spec: TransformerSpec,
    tensors: Mapping[str, Floats],  # matrices as (outputs, inputs)
    token_ids: Sequence[int],
) -> Floats:
    """The logits after each token; (len(token_ids), vocab_size). Cost: O(tokens squared)."""
    hidden = tensors["token_embd.weight"][np.asarray(token_ids)].astype(np.float32)
    for layer in range(spec.num_layers):
        normed = rms_norm(hidden, tensors[f"blk.{layer}.attn_norm.weight"], spec.norm_epsilon)
        hidden = hidden + attention_layer(spec, tensors, layer, normed)
        normed = rms_norm(hidden, tensors[f"blk.{layer}.ffn_norm.weight"], spec.norm_epsilon)
        hidden = hidden + feed_forward_layer(tensors, layer, normed)
    normed = rms_norm(hidden, tensors["output_norm.weight"], spec.norm_epsilon)
    output = tensors["token_embd.weight" if spec.tied_output else "output.weight"]
    return normed @ output.T


def attention_layer(
    spec: TransformerSpec, tensors: Mapping[str, Floats], layer: int, normed: Floats
) -> Floats:
    """What attention adds to the hidden state of a whole sequence; (T, hidden_size)."""
    positions = np.arange(len(normed), dtype=np.int64)
    mixed = causal_attention(*query_key_value(spec, tensors, layer, normed, positions))
    return mixed.reshape(len(normed), -1) @ tensors[f"blk.{layer}.attn_output.weight"].T


def query_key_value(
    spec: TransformerSpec,
    tensors: Mapping[str, Floats],
    layer: int,
    normed: Floats,  # (R, hidden_size)
    positions: NDArray[np.int64],  # (R,)
) -> tuple[Floats, Floats, Floats]:
    """Rotated queries and keys, and values; each (R, heads, head_dim)."""

    def heads(name: str, count: int) -> Floats:
        projected = normed @ tensors[f"blk.{layer}.{name}.weight"].T
        return projected.reshape(len(normed), count, spec.head_dim)

    def rotated(projected: Floats) -> Floats:
        return rotate(
            projected,
            positions,
            style=spec.rope_style,
            dimensions=spec.rope_dimensions,
            theta=spec.rope_theta,
            scale=spec.rope_scale,
        )

    return (
        rotated(heads("attn_q", spec.num_heads)),
        rotated(heads("attn_k", spec.num_kv_heads)),
        heads("attn_v", spec.num_kv_heads),
    )


def feed_forward_layer(tensors: Mapping[str, Floats], layer: int, normed: Floats) -> Floats:
    """What the gated feed-forward network adds to the hidden state; (T, hidden_size)."""
    gate = normed @ tensors[f"blk.{layer}.ffn_gate.weight"].T
    up = normed @ tensors[f"blk.{layer}.ffn_up.weight"].T
    return swiglu(gate, up) @ tensors[f"blk.{layer}.ffn_down.weight"].T
