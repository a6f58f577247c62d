"""A small llama with random half-precision weights and a vocabulary: a whole model in 1.5 MB."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.tensor import TensorType

hidden_size, ffn_size, vocab_size = 256, 512, 320
special_texts = ["<unk>", "<s>", "</s>"]


def write_model_file(
    path: Path, *, nan_in: str = "", seed: int = 0, layers: int = 1, confidence: float = 1.0
) -> Path:
    """Write the model; `nan_in` names a tensor that gets one number that is none.

    A random model is sure of wrong tokens; with a `confidence` near 0 it only guesses."""
    rng = np.random.default_rng(seed)
    plans = []
    for name, shape in _shapes(layers).items():
        if len(shape) == 1:
            values = np.ones(shape, np.float32)
        else:
            spread = (confidence if name == "output.weight" else 1.0) / np.sqrt(shape[1])
            values = (rng.normal(size=shape) * spread).astype(np.float16)
        if name == nan_in:
            values.reshape(-1)[7] = np.nan
        kind = TensorType.F32 if len(shape) == 1 else TensorType.F16
        plans.append(TensorPlan(name, kind, shape, partial(_pieces, values.tobytes())))
    write_gguf(path, _metadata(layers), plans)
    return path


def _pieces(data: bytes) -> Iterator[bytes]:
    yield data


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, hidden_size),
        "output.weight": (vocab_size, hidden_size),
        "output_norm.weight": (hidden_size,),
    }
    for index in range(layers):
        layer = f"blk.{index}."
        for name in ("q", "k", "v", "output"):
            shapes[f"{layer}attn_{name}.weight"] = (hidden_size, hidden_size)
        for name in ("gate", "up"):
            shapes[f"{layer}ffn_{name}.weight"] = (ffn_size, hidden_size)
        shapes[f"{layer}ffn_down.weight"] = (hidden_size, ffn_size)
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"{layer}{name}.weight"] = (hidden_size,)
    return shapes


def _metadata(layers: int) -> dict[str, object]:
    texts = [*special_texts, *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [f"\u2581w{index}" for index in range(vocab_size - len(texts))]
    return {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": hidden_size,
        "llama.feed_forward_length": ffn_size,
        "llama.context_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": -np.arange(vocab_size, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 61, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
