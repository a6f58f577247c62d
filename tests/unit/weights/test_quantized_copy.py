"""`--quantize`: a copy in the cache, made once, found by digest and type."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ConfigurationError
from headrace.sim.progress import SilentProgress
from headrace.weights.gguf import open_gguf
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.quantized_copy import quantized_copy
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType


def write_model(path: Path, kind: TensorType, scale: float) -> ResolvedModel:
    values = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) * scale).astype(np.float16)
    data = values.tobytes() if kind is TensorType.F16 else bytes(64 * 2 * 18)
    plan = TensorPlan("blk.0.ffn_up.weight", kind, (64, 64), lambda: iter([data]))
    write_gguf(path, {"general.architecture": "llama"}, [plan])
    return ResolvedModel(path, f"{scale:064}", "weir")


@pytest.fixture
def model(tmp_path: Path) -> ResolvedModel:
    return write_model(tmp_path / "weir.gguf", TensorType.F16, 1.0)


def test_a_copy_is_made_once_and_found_again(model: ResolvedModel, tmp_path: Path) -> None:
    progress = SilentProgress()
    made = quantized_copy(model, TensorType.Q4_0, tmp_path / "cache", progress)
    with open_gguf(made.path) as file:
        assert file.tensors["blk.0.ffn_up.weight"].type is TensorType.Q4_0
    model.path.unlink()  # nothing is read for the second one
    assert quantized_copy(model, TensorType.Q4_0, tmp_path / "cache", progress) == made
    assert made.name == "weir"
    assert not list((tmp_path / "cache" / "partial").iterdir())


def test_another_type_and_another_source_are_other_copies(
    model: ResolvedModel, tmp_path: Path
) -> None:
    progress = SilentProgress()
    other = write_model(tmp_path / "race.gguf", TensorType.F16, 0.5)
    made = {
        quantized_copy(source, kind, tmp_path / "cache", progress).sha256
        for source in (model, other)
        for kind in (TensorType.Q8_0, TensorType.Q4_0)
    }
    assert len(made) == 4


def test_a_lost_copy_is_made_again(model: ResolvedModel, tmp_path: Path) -> None:
    progress = SilentProgress()
    made = quantized_copy(model, TensorType.Q8_0, tmp_path / "cache", progress)
    made.path.unlink()
    assert quantized_copy(model, TensorType.Q8_0, tmp_path / "cache", progress) == made
    assert made.path.is_file()


def test_a_file_of_that_type_is_taken_as_it_is(tmp_path: Path) -> None:
    model = write_model(tmp_path / "race.gguf", TensorType.Q4_0, 1.0)
    assert quantized_copy(model, TensorType.Q4_0, tmp_path, SilentProgress()) == model


def test_weights_that_were_rounded_already_are_not_rounded_again(tmp_path: Path) -> None:
    model = write_model(tmp_path / "race.gguf", TensorType.Q4_0, 1.0)
    with pytest.raises(ConfigurationError, match=r"blk\.0\.ffn_up\.weight .*Q4_0 already"):
        quantized_copy(replace(model, sha256="a" * 64), TensorType.Q4_K, tmp_path, SilentProgress())
