"""A model with a number that is none does not get as far as loading."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.cli.load_checks import check_numbers
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType


def write_model(path: Path, value: float) -> ResolvedModel:
    def pieces() -> Iterator[bytes]:
        yield np.full(64, value, np.float32).tobytes()

    write_gguf(
        path, {"general.architecture": "llama"}, [TensorPlan("a", TensorType.F32, (64,), pieces)]
    )
    return ResolvedModel(path, "ab" * 32, "weir")


def test_a_model_that_passed_is_not_read_again(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", 1.0)
    check_numbers(model, tmp_path / "cache")
    write_model(tmp_path / "m.gguf", float("nan"))  # under the digest of the one before
    check_numbers(model, tmp_path / "cache")


def test_a_bad_number_is_refused_each_time(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", float("nan"))
    for _ in range(2):
        with pytest.raises(ModelFileError, match="tensor a has a value that is not a finite"):
            check_numbers(model, tmp_path / "cache")
