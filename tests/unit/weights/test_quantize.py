"""Quantized files: read by us, the `gguf` package and llama.cpp; computed with by our runner."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.cli.quantize_report import compare, write_report
from headrace.engine.cpu_runner import CpuRunner
from headrace.kernels.reference.dequantize import dequantize
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.file_use import hold_while_open
from headrace.weights.gguf import open_gguf
from headrace.weights.quantize import file_types, quantize_model
from headrace.weights.tensor import TensorType

hidden, ffn, vocab = 256, 512, 320
rough = {TensorType.Q2_K: 0.4, TensorType.Q3_K: 0.2}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small llama in half precision, with a byte-level vocabulary."""
    path = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_context_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [f"\u2581w{index}" for index in range(vocab - len(texts))]
    writer.add_token_list(texts)
    writer.add_token_scores([-float(index) for index in range(vocab)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocab - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (vocab, hidden), "output": (vocab, hidden)}
    shapes |= {f"blk.0.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (ffn, hidden), "blk.0.ffn_up": (ffn, hidden)}
    shapes |= {"blk.0.ffn_down": (hidden, ffn)}
    for name, shape in shapes.items():
        values = rng.normal(size=shape) / np.sqrt(shape[1])
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Convert = Callable[[TensorType], Path]


@pytest.fixture
def convert(source: Path, tmp_path: Path) -> Convert:
    def convert(kind: TensorType) -> Path:
        path = tmp_path / f"{kind.name}.gguf"
        with open_gguf(source) as file:
            quantize_model(file, path, kind, SilentProgress())
        return path

    return convert


@pytest.mark.parametrize("kind", list(file_types))
def test_every_type_reads_back_near_the_source(
    source: Path, convert: Convert, kind: TensorType
) -> None:
    path = convert(kind)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_gguf(path) as made, open_gguf(source) as before:
        assert made.metadata["tokenizer.ggml.tokens"] == before.metadata["tokenizer.ggml.tokens"]
        assert made.tensors["blk.0.ffn_up.weight"].type is kind
        assert made.tensors["output_norm.weight"].type is TensorType.F32
        read_architecture(made)
        for name, tensor in made.tensors.items():
            mine = dequantize(int(tensor.type), np.array(tensor.data), tensor.shape)
            found = theirs[name]
            np.testing.assert_array_equal(
                mine, gguf.quants.dequantize(found.data, found.tensor_type).reshape(mine.shape)
            )
            old = before.tensors[name]
            values = dequantize(int(old.type), np.array(old.data), old.shape)
            most = rough.get(tensor.type, 0.12)
            assert np.sqrt(np.mean((mine - values) ** 2)) < most * np.sqrt(np.mean(values**2))
    assert not list(path.parent.glob(".*tmp"))


def test_our_runner_computes_with_the_result(convert: Convert) -> None:
    with open_gguf(convert(TensorType.Q4_K)) as file:
        assert file.tensors["output.weight"].type is TensorType.Q6_K
        spec = read_architecture(file)
        runner = CpuRunner(file, spec, kv_tokens=64, rows_max=8, sequences_max=1, threads=1)
    with runner:
        assert runner.info.vocab_size == vocab


@pytest.mark.parametrize("kind", list(file_types))
def test_llama_cpp_generates_with_the_result(convert: Convert, kind: TensorType) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(convert(kind))
    params.n_ctx, params.n_parallel, params.warmup = 64, 1, False
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    answer = server.handle_completions({"prompt": "w1 w2", "max_tokens": 3, "temperature": 0})
    assert answer["usage"]["completion_tokens"] >= 1


def test_what_a_killed_writer_left_is_removed_and_what_one_writes_is_not(
    source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x[1].gguf"
    left, other = tmp_path / ".x[1].gguf.77.tmp", tmp_path / ".x1.gguf.77.tmp"
    writing = tmp_path / ".x[1].gguf.78.tmp"
    for each in (left, other, writing):
        each.write_text("half a model")
    with open_gguf(source) as file, writing.open("rb") as held:
        hold_while_open(held)
        quantize_model(file, path, TensorType.Q8_0, SilentProgress())
    assert sorted(tmp_path.iterdir()) == sorted([source, path, other, writing])


def test_experts_are_written_as_one_tensor(source: Path, tmp_path: Path) -> None:
    with open_gguf(source) as file:
        matrix = file.tensors["blk.0.ffn_up.weight"]
        name = "blk.0.ffn_up.{}.weight"
        file.tensors = {
            name.format(expert): replace(matrix, name=name.format(expert)) for expert in (1, 0)
        }
        quantize_model(file, tmp_path / "x.gguf", TensorType.Q8_0, SilentProgress())
    with open_gguf(tmp_path / "x.gguf") as made:
        assert made.tensors["blk.0.ffn_up_exps.weight"].shape == (2, ffn, hidden)


def test_a_type_that_is_not_written_is_refused(convert: Convert) -> None:
    with pytest.raises(ConfigurationError, match="choose one of"):
        convert(TensorType.IQ2_XS)


def test_a_number_that_is_none_is_refused_by_its_tensor_and_nothing_is_left(
    source: Path, tmp_path: Path
) -> None:
    with open_gguf(source) as file:
        bad = np.array(file.tensors["blk.0.ffn_down.weight"].data)
        bad[:2] = [0, 0x7E]  # half of a NaN
        tensors = {
            name: replace(tensor, source=bad) if "ffn_down" in name else tensor
            for name, tensor in file.tensors.items()
        }
        file.tensors = tensors
        with pytest.raises(ModelFileError, match=r"tensor blk\.0\.ffn_down\.weight has a value"):
            quantize_model(file, tmp_path / "x.gguf", TensorType.Q4_K, SilentProgress())
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_report_tells_more_bits_from_fewer(
    source: Path, convert: Convert, tmp_path: Path
) -> None:
    made = [(kind.name, convert(kind)) for kind in (TensorType.Q8_0, TensorType.Q4_0)]
    report = compare(source, made, "w1 w2 w3 and more")
    fine, coarse = report.types
    assert 0 <= fine.kl_nats < coarse.kl_nats
    assert fine.size_bytes > coarse.size_bytes
    written = write_report(report, tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert [entry["type"] for entry in found["types"]] == ["Q8_0", "Q4_0"]
    if len(written) > 1:  # with matplotlib
        assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "report.svg").read_text()
