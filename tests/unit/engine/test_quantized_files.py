"""Whole GGUF files of K-quants with random blocks, against the float reference of their values."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.kernels.reference.transformer import forward
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

Floats = NDArray[np.float32]
# Each type's half-precision factors: where they lie in a block, and a size for small weights.
factors: dict[str, dict[int, float]] = {
    "Q2_K": {80: 4e-3, 82: 6e-3},
    "Q3_K": {108: 1.5e-3},
    "Q4_K": {0: 2e-4, 2: 1.5e-3},
    "Q5_K": {0: 1e-4, 2: 1.5e-3},
    "Q6_K": {208: 5e-5},
}
shapes: dict[str, tuple[int, ...]] = {
    **{"token_embd.weight": (64, 256), "output_norm.weight": (256,)},
    **{f"blk.0.{name}_norm.weight": (256,) for name in ("attn", "ffn")},
    **{f"blk.0.attn_{name}.weight": (256, 256) for name in ("q", "output")},
    **{f"blk.0.attn_{name}.weight": (128, 256) for name in ("k", "v")},
    **{f"blk.0.ffn_{name}.weight": (256, 256) for name in ("gate", "up", "down")},
}


def write_file(path: Path, type_name: str) -> dict[str, Floats]:
    """A one-layer model whose matrices have that type; the values that they mean."""
    kind = gguf.GGMLQuantizationType[type_name]
    rng = np.random.default_rng(int(kind))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    values: dict[str, Floats] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            values[name] = rng.normal(1, 0.1, shape).astype(np.float32)
            writer.add_tensor(name, values[name])
            continue
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(
            0, 256, (shape[0], shape[1] // block_values, block_bytes), dtype=np.uint8
        )
        for offset, size in factors[type_name].items():
            halves = rng.uniform(0.5, 1.5, (*data.shape[:2], 1)) * size
            data[:, :, offset : offset + 2] = halves.astype("<f2").view(np.uint8)
        rows = data.reshape(shape[0], -1)
        values[name] = gguf.quants.dequantize(rows, kind)
        writer.add_tensor(name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


@pytest.mark.parametrize("type_name", factors)
def test_a_file_of_k_quants_computes_what_its_values_mean(tmp_path: Path, type_name: str) -> None:
    path = tmp_path / "model.gguf"
    values = write_file(path, type_name)
    tokens = np.random.default_rng(1).integers(0, 64, 30)
    with open_gguf(path) as file:
        spec = read_architecture(file)
        with CpuRunner(file, spec, kv_tokens=64, rows_max=64, sequences_max=1, threads=2) as runner:
            batch = StepBatch(
                token_ids=tokens.astype(np.int32),
                row_starts=np.array([0, 30], np.int32),
                context_lens=np.array([30], np.int32),
                block_ids=np.arange(2, dtype=np.int32),
                block_starts=np.array([0, 2], np.int32),
                sampled=np.zeros(1, np.int32),
                temperature=np.zeros(1, np.float32),
                top_k=np.zeros(1, np.int32),
                top_p=np.ones(1, np.float32),
                min_p=np.zeros(1, np.float32),
                seed=np.zeros(1, np.uint64),
                position=np.zeros(1, np.int64),
            )
            result, logits = runner.execute_logits(batch)
    expected = forward(spec, values, tokens.tolist())[-1]
    np.testing.assert_allclose(logits[0], expected, atol=1e-2 * float(expected.std()))
    assert result.token_ids[0] == expected.argmax()
