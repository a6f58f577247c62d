import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest

from headrace.base.errors import ModelFileError, SetupError
from headrace.weights.gguf import open_gguf
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.tensor import TensorType, block_layouts

U32, STRING, ARRAY = 4, 8, 9


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file by the independent writer, with a value of every kind."""
    path = tmp_path / "written.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_uint8("kind.u8", 200)
    writer.add_int8("kind.i8", -5)
    writer.add_uint16("kind.u16", 60_000)
    writer.add_int16("kind.i16", -30_000)
    writer.add_uint32("kind.u32", 4_000_000_000)
    writer.add_int32("kind.i32", -2_000_000_000)
    writer.add_uint64("kind.u64", 2**63)
    writer.add_int64("kind.i64", -(2**62))
    writer.add_float32("kind.f32", 0.5)
    writer.add_float64("kind.f64", 1 / 3)
    writer.add_bool("kind.bool", True)
    writer.add_string("kind.string", "wörld")
    writer.add_array("array.strings", ["a", "", "ß"])
    writer.add_array("array.numbers", [1, 2, 3])
    writer.add_array("array.flags", [True, False])
    writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("vector", np.arange(5, dtype=np.float16))
    writer.add_tensor(
        "quantized",
        oracle.quantize(np.ones((4, 64), np.float32), oracle.GGMLQuantizationType.Q4_1),
        raw_dtype=oracle.GGMLQuantizationType.Q4_1,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_of_every_kind_are_as_the_independent_writer_wrote_them(written: Path) -> None:
    with open_gguf(written) as file:
        metadata = dict(file.metadata)
    assert metadata["kind.u8"] == 200
    assert metadata["kind.i8"] == -5
    assert metadata["kind.u16"] == 60_000
    assert metadata["kind.i16"] == -30_000
    assert metadata["kind.u32"] == 4_000_000_000
    assert metadata["kind.i32"] == -2_000_000_000
    assert metadata["kind.u64"] == 2**63
    assert metadata["kind.i64"] == -(2**62)
    assert metadata["kind.f32"] == 0.5
    assert metadata["kind.f64"] == 1 / 3
    assert metadata["kind.bool"] is True
    assert metadata["kind.string"] == "wörld"
    assert metadata["array.strings"] == ["a", "", "ß"]
    assert np.array_equal(np.asarray(metadata["array.numbers"]), [1, 2, 3])
    assert np.array_equal(np.asarray(metadata["array.flags"]), [True, False])


def test_tensors_are_those_of_the_independent_reader(written: Path) -> None:
    file = open_gguf(written)
    expected = oracle.GGUFReader(written).tensors
    assert list(file.tensors) == [tensor.name for tensor in expected]
    for tensor in expected:
        found = file.tensors[tensor.name]
        assert found.type == int(tensor.tensor_type)
        assert found.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert found.data.tobytes() == tensor.data.tobytes()


def test_a_matrix_has_its_contiguous_dimension_last(written: Path) -> None:
    matrix = open_gguf(written).tensors["matrix"]
    assert matrix.shape == (2, 3)
    assert matrix.value_count == 6
    assert matrix.data.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_tensor_data_is_read_only_and_outlives_the_file(written: Path) -> None:
    with open_gguf(written) as file:
        data = file.tensors["vector"].data
    assert not file.tensors
    assert not data.flags.writeable
    assert data.view(np.float16).tolist() == [0, 1, 2, 3, 4]


def test_version_2_is_read(write_model: Any, gguf: Any) -> None:
    assert open_gguf(write_model(gguf.build(version=2))).tensors == {}


def test_a_file_may_state_its_own_alignment(write_model: Any, gguf: Any) -> None:
    data = gguf.build(
        [("general.alignment", U32, u32(64))], [("t", [4], 0, 64)], b"\0" * 80, alignment=64
    )
    assert open_gguf(write_model(data)).tensors["t"].shape == (4,)


def test_nested_arrays_are_read(write_model: Any, gguf: Any) -> None:
    inner = u32(U32) + u64(2) + u32(7) + u32(8)
    data = gguf.build([("a", ARRAY, u32(ARRAY) + u64(1) + inner)])
    found = open_gguf(write_model(data)).metadata["a"]
    assert isinstance(found, list)
    assert np.asarray(found[0]).tolist() == [7, 8]


def nested(depth: int) -> bytes:
    return (u32(ARRAY) + u64(1)) * depth + u32(U32) + u64(0)


one_value = ("t", [4], 0, 0)


@pytest.mark.parametrize(
    ("field", "entries", "tensors", "data"),
    [
        ("general.alignment", [("general.alignment", U32, u32(24))], [], b""),
        ("general.alignment", [("general.alignment", U32, u32(0))], [], b""),
        ("general.alignment", [("general.alignment", U32, u32(2**31))], [], b""),
        ("general.alignment", [("general.alignment", STRING, u64(1) + b"8")], [], b""),
        ("split.count", [("split.count", U32, u32(3))], [], b""),
        ("k", [("k", 13, b"")], [], b""),
        ("k", [("k", 2**32 - 1, b"")], [], b""),
        ("k", [("k", 7, b"\2")], [], b""),
        ("k", [("k", U32, u32(1))] * 2, [], b""),
        ("k", [("k", STRING, u64(2**60))], [], b""),
        ("k", [("k", STRING, u64(20_000_000))], [], b""),
        ("k", [("k", STRING, u64(1) + b"\xff")], [], b""),
        ("k", [("k", ARRAY, u32(STRING) + u64(2**60))], [], b""),
        ("k", [("k", ARRAY, u32(U32) + u64(2**60))], [], b""),
        ("k", [("k", ARRAY, u32(12) + u64(2**61))], [], b""),
        ("k", [("k", ARRAY, u32(ARRAY) + u64(2**60))], [], b""),
        ("k", [("k", ARRAY, u32(99) + u64(1))], [], b""),
        ("k", [("k", ARRAY, u32(7) + u64(2) + b"\1\5")], [], b""),
        ("k", [("k", ARRAY, nested(4))], [], b""),
        ("key of metadata entry 0", [("", U32, u32(1))], [], b""),
        ("key of metadata entry 0", [("k" * 70_000, U32, u32(1))], [], b""),
        ("name of tensor 0", [], [("", [4], 0, 0)], b"\0" * 16),
        ("name of tensor 0", [], [("t" * 300, [4], 0, 0)], b"\0" * 16),
        ("tensor t", [], [one_value, one_value], b"\0" * 16),
        ("tensor t: dimension count", [], [("t", [], 0, 0)], b""),
        ("tensor t: dimension count", [], [("t", [1] * 5, 0, 0)], b"\0" * 16),
        ("tensor t: dimensions", [], [("t", [0], 0, 0)], b""),
        ("tensor t: dimensions", [], [("t", [33], 3, 0)], b"\0" * 64),
        ("tensor t: type", [], [("t", [4], 4, 0)], b"\0" * 16),
        ("tensor t: type", [], [("t", [4], 1000, 0)], b"\0" * 16),
        ("tensor t: offset", [], [("t", [4], 0, 16)], b"\0" * 64),
        ("tensor t: offset", [], [one_value], b"\0" * 15),
        ("tensor t: offset", [], [("t", [4], 0, 2**63)], b"\0" * 16),
        ("tensor t: offset", [], [("t", [2**32, 2**31], 0, 0)], b"\0" * 16),
        ("tensor t: offset", [], [("t", [2**62, 4], 0, 0)], b"\0" * 16),
        ("tensor b: offset", [], [("a", [16], 0, 0), ("b", [4], 0, 32)], b"\0" * 64),
    ],
)
def test_what_is_wrong_is_named(
    write_model: Any,
    gguf: Any,
    field: str,
    entries: list[Any],
    tensors: list[Any],
    data: bytes,
) -> None:
    path = write_model(gguf.build(entries, tensors, data))
    with pytest.raises(ModelFileError) as raised:
        open_gguf(path)
    assert raised.value.fields["field"] == field
    assert field in raised.value.message
    assert str(path) in raised.value.message


@pytest.mark.parametrize("tensor_count", [2**60, 2**64 - 1, 10**9])
@pytest.mark.parametrize("metadata_count", [0, 2**60])
def test_claimed_counts_are_refused_before_they_are_believed(
    write_model: Any, tensor_count: int, metadata_count: int
) -> None:
    path = write_model(b"GGUF" + struct.pack("<IQQ", 3, tensor_count, metadata_count))
    with pytest.raises(ModelFileError, match="count"):
        open_gguf(path)


def test_a_file_full_of_empty_strings_is_refused_by_its_count(
    write_model: Any, gguf: Any, tmp_path: Path
) -> None:
    count = 9_000_000
    path = write_model(gguf.build([("k", ARRAY, u32(STRING) + u64(count))]))
    os.truncate(path, path.stat().st_size + count * 8)
    with pytest.raises(ModelFileError, match="more than the"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "magic"),
        (b"GG", "magic"),
        (b"PK\3\4" + b"\0" * 100, "magic"),
        (b"GGUF" + u32(1) + b"\0" * 16, "version"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 16, "version"),
        (b"GGUF" + u32(3) + b"\0" * 7, "tensor count"),
    ],
)
def test_what_is_no_gguf_file_is_refused(write_model: Any, data: bytes, field: str) -> None:
    with pytest.raises(ModelFileError) as raised:
        open_gguf(write_model(data))
    assert raised.value.fields["field"] == field


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(ModelFileError, match="cannot read the model file"):
            open_gguf(path)


def test_every_truncation_of_a_file_is_refused(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    last = max(
        int(tensor.data_offset) + tensor.n_bytes for tensor in oracle.GGUFReader(written).tensors
    )
    for length in range(last):
        path = tmp_path / "cut.gguf"
        path.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            open_gguf(path)


def test_block_sizes_are_those_of_the_independent_package() -> None:
    wrong_there = {"Q8_1"}  # ggml stores two half floats a block; the package still has two floats
    for name, (values, size) in (
        (kind.name, sizes) for kind, sizes in oracle.GGML_QUANT_SIZES.items()
    ):
        if name in TensorType.__members__ and name not in wrong_there:
            assert block_layouts[TensorType[name]] == (values, size)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Five tensors in three files, split by the independent writer."""
    writer = oracle.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    for index in range(5):
        writer.add_tensor(f"t{index}", np.full((2, 4), index, np.float32))
    writer.write_header_to_file(tmp_path / "big.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("big-*-of-00003.gguf"))


def test_a_split_file_is_read_whole_from_its_first_part(parts: list[Path]) -> None:
    with open_gguf(parts[0]) as file:
        assert file.metadata["general.architecture"] == "llama"
        for index in range(5):
            assert (file.tensors[f"t{index}"].data.view(np.float32) == index).all()


def test_another_part_than_the_first_is_refused(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("other.gguf"))
    with pytest.raises(ModelFileError, match=r"name the first"):
        open_gguf(renamed)


def test_a_part_that_is_missing_is_named(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(ModelFileError, match=parts[2].name):
        open_gguf(parts[0])


def test_parts_of_two_models_are_refused(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(ModelFileError, match="stands in another part too"):
        open_gguf(parts[0])


def test_what_was_written_of_a_file_that_fails_is_removed(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"1234"
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = TensorPlan("a", TensorType.F32, (2,), pieces)
    with pytest.raises(SetupError, match="No space left"):
        write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, [plan])
    assert list(tmp_path.iterdir()) == []
