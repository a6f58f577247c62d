"""What a transformer is, as data: one runner serves every family by reading this.

A new family is a new set of values here, not a new runner. The defaults are llama's. Fields are
read by csrc/binding/transformer_bindings.cpp by their names, and by `reference/transformer.py`.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopeStyle(StrEnum):
    """Which pairs of a head's dimensions rotate together."""

    ADJACENT = "adjacent"  # (0, 1), (2, 3), ...: llama GGUF files, whose Q and K rows are permuted
    HALVES = "halves"  # (0, d/2), (1, d/2 + 1), ...: Hugging Face's layout, most other families


class RopeScaling(StrEnum):
    """How rotations are stretched past the context that a model was first trained with."""

    LINEAR = "linear"  # positions are divided by rope_scale; 1.0 is no scaling
    DYNAMIC = "dynamic"  # a larger theta where more than the original context is served
    YARN = "yarn"  # slow pairs divided, fast ones left (Peng et al. 2023, arXiv 2309.00071)
    LONGROPE = "longrope"  # each pair has its divisor (Ding et al. 2024, arXiv 2402.13753)


class NormPlacement(StrEnum):
    """Where the two branches of a layer are normed."""

    BEFORE = "before"  # h += f(norm(h))
    BOTH = "both"  # h += norm(f(norm(h)))
    BRANCH = "branch"  # h += norm(f(h))
    AFTER = "after"  # h = norm(h + f(h))


class QueryKeyNorm(StrEnum):
    """What of the queries and keys is normed before they turn."""

    NONE = "none"
    HEAD = "head"  # each head
    WHOLE = "whole"  # all heads of a row together


class Activation(StrEnum):
    """What the gate of a feed-forward network goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"
    SILU_CLAMPED = "silu_clamped"  # gpt-oss


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What layers of one model may differ in."""

    window_tokens: int = 0  # 0: a row sees its whole context
    rotation: int = 0  # 0: by rope_theta and the scaling; 1: by local_rope_theta; -1: not at all
    device: int = 0  # of the runner's devices, where it is held and computed, KV included
    experts_device: int = 0  # the same of its router and experts


@dataclass(frozen=True, slots=True)
class ArchitectureSpec:
    """Shapes and constants of one model."""

    family: str  # "llama"
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    rope_style: RopeStyle
    rope_dimensions: int  # rotated dimensions of each head
    rope_theta: float
    rope_scale: float  # the scaling's factor; 1.0 is off
    tied_output: bool  # the output row is the token embedding
    rope_scaling: RopeScaling = RopeScaling.LINEAR
    original_context_length: int = 0  # before the scaling
    rope_magnitude: float = 1.0  # of sines and cosines, over what the scaling says itself
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_whole_pairs: bool = True  # the ramp begins and ends at a pair, not between two
    local_rope_theta: float = 0.0  # of layers whose rotation is 1; it is never scaled
    layers: tuple[LayerSpec, ...] = ()  # one for each layer; empty: all are LayerSpec()
    norm_placement: NormPlacement = NormPlacement.BEFORE
    layer_norm: bool = False  # LayerNorm with biases instead of RMS norm
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    activation: Activation = Activation.SILU
    gated: bool = True  # the feed-forward network has a gate
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0  # 0: one over the root of head_dim
    attention_softcap: float = 0.0  # 0 is off, as in the next
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    attention_sinks: bool = False  # each head has a score without a value
    encoder: bool = False  # every token sees all; hidden states instead of logits
    expert_count: int = 0  # 0: the feed-forward network is dense
    experts_used: int = 0  # by each token
    expert_ffn_size: int = 0
    expert_weights_normalized: bool = False  # the chosen experts' weights sum to 1
    expert_weights_scale: float = 1.0
    shared_expert_ffn_size: int = 0  # of the expert that all tokens use; 0: there is none
    shared_expert_gated: bool = False

    def layer(self, index: int) -> LayerSpec:
        """One layer's differences."""
        return self.layers[index] if self.layers else LayerSpec()
