"""Packed weights in a file: the second load maps them, and gives the same bits."""

import os
import re
import struct
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


def test_a_pipe_where_the_file_should_be_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match=rf"{re.escape(str(path))}, .* not a regular file"):
        loaded(small_model(), path)
    assert path.is_fifo()


def check(runner: CpuRunner, byte_count: int = 1000) -> str:
    """What a look at all of the weights says, a part at a time."""
    while (found := runner.check_weights(byte_count)) == "more":
        pass
    return found


def xxh64(data: bytes) -> int:
    """XXH64 of whole stripes with seed 0, word by word from its specification."""
    primes = (
        11400714785074694791,
        14029467366897019727,
        1609587929392839161,
        9650029242287828579,
    )
    mask = (1 << 64) - 1

    def turned(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & mask

    def mixed(lane: int, word: int) -> int:
        return turned((lane + word * primes[1]) & mask, 31) * primes[0] & mask

    lanes = [primes[0] + primes[1] & mask, primes[1], 0, -primes[0] & mask]
    for place, (word,) in enumerate(struct.iter_unpack("<Q", data)):
        lanes[place % 4] = mixed(lanes[place % 4], word)
    result = sum(turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        result = ((result & mask ^ mixed(0, lane)) * primes[0] + primes[3]) & mask
    result = result + len(data) & mask
    result = (result ^ result >> 33) * primes[1] & mask
    result = (result ^ result >> 29) * primes[2] & mask
    return result ^ result >> 32


def test_the_checksum_is_the_one_that_is_specified(tmp_path: Path) -> None:
    assert xxh64(bytes(range(64))) == 0xF7C67301DB6713F0  # of the reference implementation
    path = tmp_path / "model.weights"
    logits_of(small_model(), path)
    data, at, count = path.read_bytes(), 64, 0
    while at < len(data):
        _, byte_count, checksum = struct.unpack_from("<QQQ", data, at)
        assert checksum == xxh64(data[at + 64 : at + 64 + byte_count])
        at += 64 + byte_count
        count += 1
    assert count == 1 + 2 * 7  # the embedding, and each layer's matrices


def test_mapped_weights_are_checked_to_their_end(tmp_path: Path) -> None:
    model = small_model(type_name="Q8_0")
    path = tmp_path / "model.weights"
    with loaded(model, path) as first:
        assert first.check_weights(1) == "sound"  # packed just now
    with loaded(model, path) as second:
        assert second.check_weights(1000) == "more"
        assert check(second) == "sound"
        assert check(second) == "sound"  # once is enough
    assert path.exists()
    with loaded(model, None) as third:
        assert third.check_weights(1) == "sound"


@pytest.mark.parametrize("place", [0.002, 0.3, 0.999])
def test_a_flipped_bit_is_found_and_the_next_load_packs_anew(tmp_path: Path, place: float) -> None:
    model = small_model(type_name="Q8_0")
    path = tmp_path / "model.weights"
    expected = logits_of(model, path)
    whole = path.read_bytes()
    flip(path, 64 + int((len(whole) - 64) * place))
    with loaded(model, path) as runner:
        assert check(runner) == "damaged"
        assert not path.exists()
    assert (logits_of(model, path) == expected).all()
    assert path.read_bytes() == whole


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_damaged_checksum_counts_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    logits_of(small_model(), path)
    flip(path, 64 + 16)  # behind the first matrix's key and size
    with loaded(small_model(), path) as runner:
        assert check(runner) == "damaged"


def test_a_file_that_is_cut_while_it_is_mapped_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    logits_of(small_model(), path)
    with loaded(small_model(), path) as runner:
        os.truncate(path, path.stat().st_size // 2)
        assert check(runner) == "damaged"
        assert not path.exists()


def test_a_whole_file_that_another_process_put_there_is_not_removed(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.weights"
    logits_of(model, path)
    whole = path.read_bytes()
    flip(path, len(whole) - 1)
    with loaded(model, path) as runner:
        other = tmp_path / "other"
        other.write_bytes(whole)
        other.rename(path)
        assert check(runner) == "damaged"
    assert path.read_bytes() == whole
    with loaded(model, path) as runner:
        assert check(runner) == "sound"


def test_what_another_process_writes_is_not_read_before_it_is_whole(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.weights"
    expected = logits_of(model, path)
    whole = path.read_bytes()
    path.unlink()
    writing = tmp_path / "model.weights.1.tmp"  # as process 1 names it
    writing.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    assert (logits_of(model, path) == expected).all()
    assert path.read_bytes() == whole
    with loaded(model, path) as runner:
        writing.write_bytes(whole)
        writing.rename(path)  # while ours is mapped
        assert check(runner) == "sound"
    with loaded(model, path) as runner:
        assert check(runner) == "sound"


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
