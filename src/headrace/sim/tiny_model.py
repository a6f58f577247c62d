"""A model small enough for the NumPy runner in tests: two layers of random weights."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.architecture import ArchitectureSpec, RopeStyle

vocab_size = 300
hidden_size = 32
ffn_size = 48


tiny_spec = ArchitectureSpec(
    family="llama",
    num_layers=2,
    hidden_size=hidden_size,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=ffn_size,
    vocab_size=vocab_size,
    context_length=128,
    norm_epsilon=1e-5,
    rope_style=RopeStyle.ADJACENT,
    rope_dimensions=8,
    rope_theta=10_000.0,
    rope_scale=1.0,
    tied_output=True,
)


def tiny_tensors(spec: ArchitectureSpec) -> dict[str, NDArray[np.float32]]:
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
