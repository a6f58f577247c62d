"""docs/reference/models.md, made from the code: `python -m headrace.weights.reference_page`."""

import sys

from headrace.weights.families import Family, families
from headrace.weights.quantize import file_types
from headrace.weights.tensor import TensorType

# What csrc/model/file_blocks.cpp and packed_matrix.cpp read.
computed_types = (
    *(TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q4_0, TensorType.Q4_1),
    *(TensorType.Q5_0, TensorType.Q5_1, TensorType.Q8_0, TensorType.Q2_K, TensorType.Q3_K),
    *(TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K, TensorType.IQ4_NL, TensorType.IQ4_XS),
    TensorType.MXFP4,
)
introduction = """# Models that headrace computes

Made from the code by `python -m headrace.weights.reference_page`; a test keeps it current.

One runner computes every family; what differs is data (`headrace.kernels.architecture`). Each
family is tested as a small random model against `transformers`: float logits within 1e-4, the same
greedy tokens from the compiled runner. A file of another family, or one that asks for something
that is not computed, is refused with the name of what it asks for.
"""
columns = "| family | models | `model_type` | norms | attention | feed-forward |"
norm_words = {
    "before": "before each branch",
    "both": "before and behind each branch",
    "branch": "behind each branch",
    "after": "behind each sum",
}


def render_page() -> str:
    """The whole page."""
    types = ", ".join(tensor_type.name for tensor_type in computed_types)
    rows = "\n".join(_row(family) for family in families.values())
    return (
        f"{introduction}\n## Families\n\n{columns}\n|---|---|---|---|---|---|\n{rows}\n\n"
        "Mixtral and other mixtures of experts under `llama` are read by their expert count. "
        "Attention biases are used wherever a file has them.\n\n"
        "## Rotary scaling\n\nnone, linear, dynamic, llama3, yarn, longrope; "
        "layers without rotation; a base of its own for layers with a window.\n\n"
        f"## Weights\n\n* GGUF, one file or split: {types}.\n"
        "* safetensors (a directory in Hugging Face's layout, one file or several): "
        "F32, F16, BF16.\n"
        f"* `headrace quantize` writes {', '.join(kind.name for kind in file_types)}.\n\n"
        "## Tokenizers\n\nByte-level BPE, SentencePiece by merging and unigram, with bytes for "
        "what no token covers;\nfrom GGUF files and from tokenizer.json. A pre-tokenizer or a "
        "step that is not known is refused by name.\n"
    )


def _row(family: Family) -> str:
    kinds = ", ".join(f"`{kind}`" for kind in family.model_types)
    norms = ("LayerNorm " if family.layer_norm else "RMS ") + norm_words[family.norm_placement]
    return (
        f"| `{family.name}` | {family.models} | {kinds} | {norms} | {_attention(family)} "
        f"| {_feed_forward(family)} |"
    )


def _attention(family: Family) -> str:
    words = ["all tokens" if family.encoder else "causal"]
    if family.query_key_norm != "none":
        words.append(f"queries and keys normed by {family.query_key_norm}")
    if family.window_period > 1:
        words.append(f"windows, every {family.window_period}th layer full")
    if family.attention_softcap:
        words.append("capped scores")
    if family.unrotated_period:
        words.append(f"every {family.unrotated_period}th layer unrotated")
    if family.sinks:
        words.append("sinks")
    return ", ".join(words)


def _feed_forward(family: Family) -> str:
    words = [f"{family.activation}, gated" if family.gated else f"{family.activation}"]
    if family.experts:
        words.append("experts with a shared one" if family.experts_shared else "experts")
    return ", ".join(words)


if __name__ == "__main__":
    sys.stdout.write(render_page())
