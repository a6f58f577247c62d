"""A model reference becomes a file, in the type that was asked for."""

from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import QuantizeTo, resolve_model
from headrace.sim.model_on_disk import write_model_file
from headrace.weights.gguf import open_gguf
from headrace.weights.tensor import TensorType


def test_float_weights_are_loaded_in_the_type_asked_for(tmp_path: Path) -> None:
    source = str(write_model_file(tmp_path / "weir.gguf"))
    plain = resolve_model(source, tmp_path / "cache")
    made = resolve_model(source, tmp_path / "cache", QuantizeTo.Q8_0)
    assert plain.name == made.name == "weir"
    with open_gguf(made.path) as file:
        assert file.tensors["blk.0.ffn_up.weight"].type is TensorType.Q8_0
        assert file.metadata["general.name"] == "weir"
    assert resolve_model(source, tmp_path / "cache", QuantizeTo.Q8_0) == made


def test_a_copy_is_no_source_of_another(tmp_path: Path) -> None:
    source = str(write_model_file(tmp_path / "weir.gguf"))
    made = resolve_model(source, tmp_path / "cache", QuantizeTo.Q4_0)
    with pytest.raises(ConfigurationError, match="already"):
        resolve_model(str(made.path), tmp_path / "cache", QuantizeTo.Q4_K)
