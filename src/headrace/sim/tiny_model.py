"""A model small enough for the NumPy runner in tests: two layers of random weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

vocab_size = 300
hidden_size = 32
ffn_size = 48


@dataclass(frozen=True, slots=True)
class TinySpec:
    """The sizes that the NumPy runner asks a model for."""

    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    norm_epsilon: float = 1e-5
    rope_style: str = "adjacent"
    rope_dimensions: int = 8
    rope_theta: float = 10_000.0
    rope_scale: float = 1.0
    tied_output: bool = True


def tiny_tensors(spec: TinySpec) -> dict[str, NDArray[np.float32]]:
    """Its weights by GGUF name, the same at each call."""
    rng = np.random.default_rng(0)
    kv = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, hidden_size),
        "output_norm.weight": (hidden_size,),
    }
    for layer in range(spec.num_layers):
        names = {
            "attn_norm": (hidden_size,),
            "attn_q": (hidden_size, hidden_size),
            "attn_k": (kv, hidden_size),
            "attn_v": (kv, hidden_size),
            "attn_output": (hidden_size, hidden_size),
            "ffn_norm": (hidden_size,),
            "ffn_gate": (ffn_size, hidden_size),
            "ffn_up": (ffn_size, hidden_size),
            "ffn_down": (hidden_size, ffn_size),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in names.items()}
    return {
        name: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
