"""Make a llama-shaped model of random weights, blocks or floats, with another file's tokenizer.

Speed does not depend on what weights are, so that sizes and types can be compared for which no file
is at hand. Blocks are random bytes under scales that keep activations in range:

    python bench/random_model.py TOKENIZER.gguf OUT.gguf --type Q5_K --size small
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize
from numpy.typing import NDArray
from requantize import add_file_type, copy_metadata

weight_deviation = 0.02
# Of each type: the deviation of its stored numbers times their sub-block's scale, and where the
# block's float16 factors are (of scales, of minimums).
blocks: dict[str, tuple[float, int, int | None]] = {
    "Q4_0": (4.6, 0, None),
    "Q4_1": (4.6, 0, 2),
    "Q8_0": (74.0, 0, None),
    "Q4_K": (150.0, 0, 2),
    "Q5_K": (290.0, 0, 2),
    "Q6_K": (1400.0, 208, None),
}
floats = ("BF16", "F16", "F32")
types = (*sorted(blocks), *floats)


@dataclass(frozen=True)
class Shape:
    """What makes a Llama large."""

    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int


shapes = {
    "small": Shape(hidden=768, layers=12, ffn=2048, heads=12, kv_heads=4),
    "1b": Shape(hidden=2048, layers=16, ffn=8192, heads=32, kv_heads=8),
}


def random_blocks(
    kind: GGMLQuantizationType, outputs: int, inputs: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """A matrix as it lies in a file, (outputs, bytes of a row)."""
    if kind.name in floats:
        normal = rng.standard_normal((outputs, inputs), np.float32) * np.float32(weight_deviation)
        return quantize(normal, kind).view(np.uint8).reshape(outputs, -1)
    values, size = GGML_QUANT_SIZES[kind]
    deviation, scale_at, minimum_at = blocks[kind.name]
    data = rng.integers(0, 256, (outputs * inputs // values, size), np.uint8)
    scale = np.float16(weight_deviation / deviation)
    data[:, scale_at : scale_at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    if minimum_at is not None:
        data[:, minimum_at : minimum_at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return data.reshape(outputs, -1)


def matrices_of(shape: Shape, vocab_size: int) -> dict[str, tuple[int, int]]:
    """Name and (outputs, inputs) of every matrix."""
    kv = shape.hidden // shape.heads * shape.kv_heads
    out = {"token_embd.weight": (vocab_size, shape.hidden)}
    for layer in range(shape.layers):
        out |= {
            f"blk.{layer}.{name}.weight": size
            for name, size in {
                "attn_q": (shape.hidden, shape.hidden),
                "attn_k": (kv, shape.hidden),
                "attn_v": (kv, shape.hidden),
                "attn_output": (shape.hidden, shape.hidden),
                "ffn_gate": (shape.ffn, shape.hidden),
                "ffn_up": (shape.ffn, shape.hidden),
                "ffn_down": (shape.hidden, shape.ffn),
            }.items()
        }
    return out


def write_model(tokenizer: Path, target: Path, kind: GGMLQuantizationType, shape: Shape) -> None:
    """Write the file; the output matrix is the embedding's."""
    reader = GGUFReader(tokenizer)
    writer = GGUFWriter(target, "llama")
    copy_metadata(reader, writer, but="llama.")
    add_file_type(writer, kind)
    vocab = reader.get_field("tokenizer.ggml.tokens")
    assert vocab is not None
    vocab_size = len(vocab.contents())
    for key, value in {
        "block_count": shape.layers,
        "context_length": 8192,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "rope.dimension_count": shape.hidden // shape.heads,
        "vocab_size": vocab_size,
    }.items():
        writer.add_key_value(f"llama.{key}", value, GGUFValueType.UINT32)
    for key, number in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e4)):
        writer.add_key_value(f"llama.{key}", number, GGUFValueType.FLOAT32)
    rng = np.random.default_rng(0)
    for name, (outputs, inputs) in matrices_of(shape, vocab_size).items():
        writer.add_tensor(name, random_blocks(kind, outputs, inputs, rng), raw_dtype=kind)
    norms = ["output_norm"]
    norms += [f"blk.{n}.{name}" for n in range(shape.layers) for name in ("attn_norm", "ffn_norm")]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", default="Q4_0", choices=types)
    parser.add_argument("--size", default="small", choices=sorted(shapes))
    arguments = parser.parse_args()
    kind = GGMLQuantizationType[arguments.type]
    write_model(arguments.tokenizer, arguments.target, kind, shapes[arguments.size])


if __name__ == "__main__":
    main()
