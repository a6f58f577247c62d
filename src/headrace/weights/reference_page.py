"""docs/reference/models.md, made from the code: `python -m headrace.weights.reference_page`."""

import sys

from headrace.kernels.reference.quantize import searched, weighted
from headrace.weights.families import Family, families
from headrace.weights.quantize import file_types
from headrace.weights.tensor import TensorType, block_layouts

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
greedy tokens from the compiled runner. The GGUF file that `headrace quantize` makes of it is
computed by us and by llama.cpp and compared again, except for what llama.cpp has no metadata for:
windows of Mistral and Phi-3, other layers with windows or without rotation than a family's own,
gpt-oss's YaRN between whole pairs, YaRN's `beta_slow`, dynamic scaling past the original context,
Qwen3-MoE without normed shares. A file of another family, or one that asks for something that is
not computed, is refused with the name of what it asks for.
"""
rotary = """## Rotary scaling

none, linear, dynamic, llama3, yarn, longrope; layers without rotation; a base of its own for layers
with a window. Dynamic's factor, and which of longrope's lists is taken, are by the served context
(`--context-length`, `--kv-tokens`) and not by each text, so that a token's key means the same in
all of them. YaRN serves what it stretches the original context to, where a file says less.
"""
safetensors = """## Weights in safetensors

A directory in Hugging Face's layout, one file or several, or a whole repository (`hf://owner/repo`).

| what | how it is kept |
|---|---|
| F32, F16, BF16 | as it is; `--quantize q8_0`, `q4_k` or `q4_0` makes a copy in the cache |
| GPTQ of 2 to 8 bits, AWQ | exactly: around a middle as Q4_0 or Q8_0, with zeros as Q5_0 |
| GPTQ by activation order (`g_idx` out of order), 8 bits with zeros | rounded to Q8_0 |
| FP8 (E4M3, E5M2), scales of a tensor, output or block | rounded to Q8_0 |
| compressed-tensors: int8, packed integers | exactly, or rounded to Q8_0, as GPTQ |
| MXFP4 (gpt-oss) | exactly, as MXFP4 |

What is rounded is said when the model is loaded. Activations are never rounded to the model's type.
"""
tokenizers = """## Tokenizers

Byte-level BPE, SentencePiece by merging and unigram, with bytes for what no token covers, from GGUF
files and from tokenizer.json; WordPiece for encoders. A pre-tokenizer or a step that is not known
is refused by name. Embedding models take the mean of the tokens (MiniLM, E5) or the first (BGE), as
their directory or file says.
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
    rows = "\n".join(_row(family) for family in families.values())
    return (
        f"{introduction}\n## Families\n\n{columns}\n|---|---|---|---|---|---|\n{rows}\n\n"
        "Mixtral and other mixtures of experts under `llama` are read by their expert count. "
        "Attention biases are used wherever a file has them.\n\n"
        f"{rotary}\n{_weights()}\n{safetensors}\n{tokenizers}"
    )


def _weights() -> str:
    """The types of GGUF files."""
    rows = [
        f"| {kind.name} | {_bits(kind)} | {'yes' if kind in file_types else 'no'} "
        f"| {'yes' if int(kind) in (*searched, *weighted) else 'no'} |"
        for kind in computed_types
    ]
    return "\n".join(
        [
            "## Weights in GGUF files, one or split",
            "",
            "| type | bits a weight | written by `headrace quantize` | with `--imatrix` |",
            "|---|---|---|---|",
            *rows,
            "",
            "All are read and computed with. Of a type whose blocks do not divide a matrix's rows, "
            "the nearest type whose blocks do is written instead.",
            "",
        ]
    )


def _bits(kind: TensorType) -> str:
    layout = block_layouts[kind]
    return f"{layout.bytes * 8 / layout.values:.4g}"


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
