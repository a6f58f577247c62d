"""What a transformer is, as data: one runner serves every family by reading this.

The llama family first. A new family is a new set of values here, not a new runner.
`architecture_reader` fills it in from a model file.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopeStyle(StrEnum):
    """Which pairs of a head's dimensions rotate together."""

    ADJACENT = "adjacent"  # (0, 1), (2, 3), ...: llama GGUF files, whose Q and K rows are permuted
    HALVES = "halves"  # (0, d/2), (1, d/2 + 1), ...: Hugging Face's layout, most other families


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
    rope_scale: float  # positions are divided by it; 1.0 is off (linear scaling)
    tied_output: bool  # the output row is the token embedding
