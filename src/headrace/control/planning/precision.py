"""What a number costs: bits of weights by the part they are in, and of the KV cache."""

from dataclasses import dataclass

from headrace.base.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Precision:
    """Bits a weight, scales included; embeddings stay wide in most formats."""

    name: str
    matrix_bits: float  # attention and dense feed-forward
    expert_bits: float
    embedding_bits: float


precisions = (
    Precision("bf16", 16, 16, 16),
    Precision("fp8", 8, 8, 16),
    Precision("int8", 8, 8, 16),
    Precision("int4", 4.25, 4.25, 16),  # groups of 64 to 128 with a 16-bit scale
    Precision("mxfp4", 16, 4.25, 16),  # gpt-oss: only the experts are narrow
    Precision("nvfp4", 4.5, 4.5, 16),
    Precision("q8_0", 8.5, 8.5, 8.5),
    Precision("q4_k_m", 4.85, 4.85, 6.56),  # llama.cpp's mixture, on average
    Precision("q4_0", 4.5, 4.5, 4.5),
)
kv_bits = {"bf16": 16, "fp16": 16, "fp8": 8, "q8_0": 8.5}


def find_precision(name: str) -> Precision:
    """A precision by name; InvalidRequest lists them."""
    for precision in precisions:
        if precision.name == name.lower():
            return precision
    names = ", ".join(precision.name for precision in precisions)
    raise InvalidRequest(f"no precision {name!r}; there are {names}", param="precision")


def find_kv_bits(name: str) -> float:
    """Bits of a number in the KV cache; InvalidRequest lists the types."""
    if name.lower() not in kv_bits:
        raise InvalidRequest(f"no KV type {name!r}; there are {', '.join(kv_bits)}", param="kv")
    return kv_bits[name.lower()]
