"""Packed weights in a file: the second load maps them, and gives the same bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.engine.cpu_runner import CpuRunner
from headrace.sim.small_model import SmallModel, Work, base_spec, small_model, step
from headrace.weights.file_use import is_in_use
from headrace.weights.tensor import Bytes, Tensor


def loaded(model: SmallModel, path: Path | None) -> CpuRunner:
    return CpuRunner(
        model, model.spec, kv_tokens=64, rows_max=8, sequences_max=2, threads=2, packed_path=path
    )


def logits_of(model: SmallModel, path: Path | None) -> NDArray[np.float32]:
    """One step's; the file, if one is written, is whole when the runner is closed."""
    with loaded(model, path) as runner:
        _, logits = runner.execute_logits(step([Work((3, 1, 4), 0, (0,))]))
    return logits


def without_matrices(model: SmallModel) -> SmallModel:
    """The same model, had nobody read the matrices of its file."""
    tensors = {
        name: tensor
        if len(tensor.shape) == 1
        else Tensor(name, tensor.type, tensor.shape, np.zeros_like(tensor.data))
        for name, tensor in model.tensors.items()
    }
    return SmallModel(model.spec, tensors, model.values)


@pytest.mark.parametrize("type_name", ["F32", "Q4_0", "Q8_0"])
def test_a_second_load_maps_what_the_first_packed(tmp_path: Path, type_name: str) -> None:
    model = small_model(type_name=type_name)
    path = tmp_path / "model.weights"
    expected = logits_of(model, None)
    assert (logits_of(model, path) == expected).all()
    assert [file.name for file in tmp_path.iterdir()] == ["model.weights"]
    assert (logits_of(without_matrices(model), path) == expected).all()


def test_weights_that_are_to_be_made_are_made_once_and_not_where_they_are_packed(
    tmp_path: Path,
) -> None:
    model = small_model(type_name="Q8_0")
    made: list[str] = []

    def unmade(tensor: Tensor) -> Tensor:
        def make() -> Bytes:
            made.append(tensor.name)
            return tensor.data

        return Tensor(tensor.name, tensor.type, tensor.shape, make)

    matrices = {name for name, tensor in model.tensors.items() if len(tensor.shape) == 2}
    tensors = {
        name: unmade(tensor) if name in matrices else tensor
        for name, tensor in model.tensors.items()
    }
    stored_otherwise = SmallModel(model.spec, tensors, model.values)
    path = tmp_path / "model.weights"
    expected = logits_of(model, None)
    assert (logits_of(stored_otherwise, path) == expected).all()
    assert sorted(made) == sorted(matrices)
    assert (logits_of(stored_otherwise, path) == expected).all()
    assert sorted(made) == sorted(matrices)


def test_weights_that_come_out_in_another_size_are_refused() -> None:
    model = small_model()
    name = "blk.0.ffn_up.weight"
    tensor = model.tensors[name]
    short = Tensor(name, tensor.type, tensor.shape, lambda: tensor.data[:-4])
    with pytest.raises(ModelFileError, match=r"tensor blk\.0\.ffn_up\.weight has"):
        loaded(SmallModel(model.spec, {**model.tensors, name: short}, model.values), None)


def test_a_mapped_file_is_in_use(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.weights"
    logits_of(model, path)
    with loaded(model, path):
        assert is_in_use([path])
    assert not is_in_use([path])


def test_a_file_of_another_model_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    logits_of(small_model(), path)
    for other in (small_model(replace(base_spec, ffn_size=128)), small_model(type_name="Q4_1")):
        expected = logits_of(other, None)
        assert (logits_of(other, path) == expected).all()
        assert (logits_of(without_matrices(other), path) == expected).all()


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_file_that_is_not_whole_is_made_anew(tmp_path: Path, kept: float) -> None:
    model = small_model()
    path = tmp_path / "model.weights"
    expected = logits_of(model, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert (logits_of(model, path) == expected).all()
    assert path.read_bytes() == whole


def test_a_directory_that_takes_no_files_costs_nothing_but_the_packing(tmp_path: Path) -> None:
    model = small_model()
    expected = logits_of(model, None)
    assert (logits_of(model, tmp_path / "missing" / "model.weights") == expected).all()


def test_two_that_load_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.weights"
    with loaded(model, path) as first, loaded(model, path) as second:
        work = step([Work((3, 1, 4), 0, (0,))])
        assert (first.execute_logits(work)[1] == second.execute_logits(work)[1]).all()
    assert [file.name for file in tmp_path.iterdir()] == ["model.weights"]
    assert (logits_of(without_matrices(model), path) == logits_of(model, None)).all()
