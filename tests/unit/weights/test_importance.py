"""What a text says about a matrix's inputs, and what llama.cpp's files say, reach the quantizer."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.norm import rms_norm
from headrace.sim.model_on_disk import ffn_size, hidden_size, write_model_file
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.importance import Importance, measure_importance, read_importance
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import TensorType

tokens = [5, 300, 17, 301, 302, 5, 99, 310] * 40  # more than one chunk


def test_a_text_is_measured_at_every_matrix(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf", layers=2)
    with open_gguf(path) as file:
        spec = read_architecture(file)
        found = measure_importance(file, spec, tokens, SilentProgress())
        table = file.tensors["token_embd.weight"]
        embedding = dequantize(int(table.type), np.array(table.data), table.shape)
    layers = {f"blk.{layer}." for layer in range(2)}
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    assert set(found.by_name) == {p + name for p in layers for name in names} | {"output"}
    assert found.by_name["blk.1.ffn_down"].shape == (ffn_size,)
    normed = rms_norm(embedding[tokens], np.ones(hidden_size, np.float32), 1e-5)
    expected = np.sum(normed.astype(np.float64) ** 2, axis=0)
    np.testing.assert_allclose(found.by_name["blk.0.attn_q"], expected, rtol=1e-4)
    np.testing.assert_array_equal(found.by_name["blk.0.attn_q"], found.by_name["blk.0.attn_k"])


def test_what_matters_is_kept_better(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf")
    name = "blk.0.ffn_up.weight"
    inputs = np.where(np.arange(hidden_size) % 9 == 0, 400.0, 1.0).astype(np.float32)
    errors = []
    for importance in (None, Importance({"blk.0.ffn_up": inputs})):
        made = tmp_path / "made.gguf"
        with open_gguf(path) as file:
            quantize_model(file, made, TensorType.Q4_0, SilentProgress(), importance)
            before = file.tensors[name]
            values = dequantize(int(before.type), np.array(before.data), before.shape)
        with open_gguf(made) as file:
            after = file.tensors[name]
            found = dequantize(int(after.type), np.array(after.data), after.shape)
        errors.append(float(np.sum(inputs * (found - values) ** 2)))
    assert errors[1] < 0.7 * errors[0]


def test_an_importance_of_another_model_is_refused(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf")
    wrong = Importance({"blk.0.ffn_up": np.ones(7, np.float32)})
    with open_gguf(path) as file, pytest.raises(ConfigurationError, match="another model"):
        quantize_model(file, tmp_path / "x.gguf", TensorType.Q4_0, SilentProgress(), wrong)


def test_names_of_fused_tensors_and_of_experts_are_understood() -> None:
    one, two = np.array([1.0, 3.0], np.float32), np.array([2.0, 2.0], np.float32)
    each = Importance({"blk.0.attn_q": one, "blk.0.ffn_up.0": one, "blk.0.ffn_up.2": two})
    whole = Importance({"blk.0.ffn_up_exps": np.stack([one, two * 0])})
    fused = each.of("blk.0.attn_qkv.weight")
    assert fused is not None
    assert fused.tolist() == [0.5, 1.5]  # by the mean
    joined = each.of("blk.0.ffn_up_exps.weight")
    assert joined is not None
    np.testing.assert_allclose(joined, np.array([[0.5, 1.5], [1e-4, 1e-4], [1.0, 1.0]]))
    first = whole.of("blk.0.ffn_up.0.weight")
    assert first is not None
    assert first.tolist() == [0.5, 1.5]
    assert whole.of("blk.0.ffn_up.5.weight") is None
    assert each.of("blk.1.ffn_up.weight") is None


def test_a_file_of_llama_cpps_newer_tool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("imatrix")
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", np.arange(4, dtype=np.float32).reshape(1, 4))
    writer.add_tensor("blk.0.attn_q.weight.counts", np.ones((1, 1), np.float32))
    experts = np.arange(6, dtype=np.float32).reshape(3, 2)
    writer.add_tensor("blk.0.ffn_up_exps.weight.in_sum2", experts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_importance(path)
    assert found is not None
    assert found.by_name["blk.0.attn_q"].tolist() == [0, 1, 2, 3]
    assert found.by_name["blk.0.ffn_up_exps"].tolist() == experts.tolist()


def entry(name: bytes, numbers: list[float]) -> bytes:
    head = struct.pack("<i", len(name)) + name + struct.pack("<ii", 5, len(numbers))
    return head + struct.pack(f"<{len(numbers)}f", *numbers)


def test_a_file_of_llama_cpps_older_tool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.dat"
    tail = struct.pack("<ii", 12, 4) + b"text"  # the last chunk and the text's name
    entries = entry(b"blk.0.attn_q.weight", [1.0, 2.0]) + entry(b"output.weight", [3.0])
    path.write_bytes(struct.pack("<i", 2) + entries + tail)
    found = read_importance(path)
    assert found is not None
    assert {name: rows.tolist() for name, rows in found.by_name.items()} == {
        "blk.0.attn_q": [1, 2],
        "output": [3],
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<i", -1),
        struct.pack("<i", 1 << 30),
        struct.pack("<i", 2) + entry(b"a", [1.0]),
        struct.pack("<i", 1) + entry(b"a", [1.0])[:-1],
        struct.pack("<i", 1) + entry(b"a", [-1.0]),
        struct.pack("<i", 1) + entry(b"a", [float("nan")]),
        struct.pack("<ii", 1, 1 << 20) + b"a",
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"imatrix\.dat"):
        read_importance(path)


def test_a_text_is_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("a few words")
    assert read_importance(path) is None
