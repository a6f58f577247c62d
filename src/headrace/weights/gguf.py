"""GGUF model files, read in place: metadata as Python values, tensors as views of the mapped file.

A model file is hostile input. Every count, length, offset, type, dimension and the alignment is
checked against limits and the file's size before it is used; anything else is a ModelFileError
that names the field. Format: the GGUF specification in ggml's docs, versions 2 and 3.
"""

import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.gguf_cursor import GgufCursor
from headrace.weights.gguf_metadata import MetadataValue, read_metadata
from headrace.weights.tensor import Tensor, TensorType, block_layouts

magic = int.from_bytes(b"GGUF", "little")
versions = (2, 3)
tensors_max = 100_000
tensor_name_bytes_max = 256
tensor_entry_bytes_min = (
    8 + 1 + 4 + 8 + 4 + 8
)  # name length, name, rank, one dimension, type, offset
dimensions_max = 4
parts_max = 1_000  # of a split file
alignment_default = 32
alignment_max = 65_536


class GgufFile:
    """An open model file; `with` lets go of it, and the mapping ends with the last tensor view."""

    def __init__(
        self, path: Path, metadata: Mapping[str, MetadataValue], tensors: Mapping[str, Tensor]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self.notes: Sequence[str] = ()

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the tensors and the metadata; views that others still hold stay valid."""
        self.metadata = {}
        self.tensors = {}


def open_gguf(path: Path) -> GgufFile:
    """Map and check a whole file's structure; ModelFileError says what is wrong with it.

    Of a split file the first part is named; the others lie beside it. Cost: the header and the
    metadata are read; no tensor's data is."""
    first = _open_part(path)
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return first
    tensors = dict(first.tensors)
    for part in _other_parts(path, count):
        for name, tensor in _open_part(part).tensors.items():
            if name in tensors:
                _fail(part, f"tensor {name}", "stands in another part too")
            tensors[name] = tensor
    if first.metadata.get("split.tensors.count", len(tensors)) != len(tensors):
        _fail(path, "split.tensors.count", f"the parts have {len(tensors)} tensors in all")
    return GgufFile(path, first.metadata, tensors)


def _other_parts(path: Path, count: int) -> list[Path]:
    """Paths of the parts after the first, by the names that splitting gives."""
    ending = f"-00001-of-{count:05}.gguf"
    if count > parts_max or not path.name.endswith(ending):
        _fail(
            path,
            "split.count",
            f"this is one of {count} parts; name the first, the file that ends with {ending}, with "
            "the others beside it, or merge them into one file",
        )
    stem = path.name.removesuffix(ending)
    return [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(f"{path}: {field}: {problem}.", file=str(path), field=field)


def _open_part(path: Path) -> GgufFile:
    cursor, data = _map(path)
    if cursor.take_u32("magic") != magic:
        cursor.fail("magic", "the file does not begin with GGUF")
    version = cursor.take_u32("version")
    if version not in versions:
        known = " and ".join(str(number) for number in versions)
        cursor.fail("version", f"{version} is unknown; little-endian versions {known} are read")
    tensor_count = cursor.take_u64("tensor count")
    metadata_count = cursor.take_u64("metadata count")
    metadata = read_metadata(cursor, metadata_count)
    entries = _read_entries(cursor, tensor_count)
    alignment = _alignment(cursor, metadata)
    data_start = -(-cursor.offset // alignment) * alignment
    _check_places(cursor, entries, data_start, len(data), alignment)
    whole = np.frombuffer(data, np.uint8)
    tensors = {
        entry.name: Tensor(
            entry.name,
            entry.type,
            entry.shape,
            whole[data_start + entry.offset : data_start + entry.offset + entry.byte_count],
        )
        for entry in entries
    }
    return GgufFile(path, metadata, tensors)


class _Entry(NamedTuple):
    """A tensor's line in the header."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int  # from the start of the data section
    byte_count: int


def _map(path: Path) -> tuple[GgufCursor, mmap.mmap]:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(
            f"{path}: the file is empty; fetch it again.", file=str(path), field="magic"
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot read the model file ({error.strerror}); check the path and its "
            "permissions.",
            file=str(path),
            field="path",
        ) from error
    return GgufCursor(data, str(path)), data


def _alignment(cursor: GgufCursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", alignment_default)
    if not isinstance(alignment, int) or isinstance(alignment, bool):
        cursor.fail("general.alignment", "is not an integer")
    if not 0 < alignment <= alignment_max or alignment & (alignment - 1):
        cursor.fail(
            "general.alignment",
            f"{alignment} is not a power of two between 1 and {alignment_max}",
        )
    return alignment


def _read_entries(cursor: GgufCursor, count: int) -> list[_Entry]:
    if count > tensors_max:
        cursor.fail("tensor count", f"{count} is more than the {tensors_max} allowed")
    cursor.spend_objects(count, smallest_bytes=tensor_entry_bytes_min, field="tensor count")
    entries: dict[str, _Entry] = {}
    for index in range(count):
        entry = _read_entry(cursor, index)
        if entry.name in entries:
            cursor.fail(f"tensor {entry.name}", "stands twice in the file")
        entries[entry.name] = entry
    return list(entries.values())


def _read_entry(cursor: GgufCursor, index: int) -> _Entry:
    name = cursor.take_string(f"name of tensor {index}", tensor_name_bytes_max)
    if not name:
        cursor.fail(f"name of tensor {index}", "is empty")
    rank = cursor.take_u32(f"tensor {name}: dimension count")
    if not 1 <= rank <= dimensions_max:
        cursor.fail(
            f"tensor {name}: dimension count", f"{rank} is not between 1 and {dimensions_max}"
        )
    # The file has the contiguous dimension first; we have it last.
    shape = tuple(cursor.take_u64(f"tensor {name}: dimensions") for _ in range(rank))[::-1]
    if 0 in shape:
        cursor.fail(f"tensor {name}: dimensions", f"one of {shape} is zero")
    type_number = cursor.take_u32(f"tensor {name}: type")
    if type_number not in block_layouts:
        cursor.fail(f"tensor {name}: type", f"{type_number} is not a type that headrace knows")
    tensor_type = TensorType(type_number)
    layout = block_layouts[tensor_type]
    if shape[-1] % layout.values:
        cursor.fail(
            f"tensor {name}: dimensions",
            f"rows of {shape[-1]} values are no whole {tensor_type.name} blocks of {layout.values}",
        )
    offset = cursor.take_u64(f"tensor {name}: offset")
    return _Entry(name, tensor_type, shape, offset, prod(shape) // layout.values * layout.bytes)


def _check_places(
    cursor: GgufCursor, entries: list[_Entry], data_start: int, file_bytes: int, alignment: int
) -> None:
    """Every tensor is aligned, inside the file, and shares no byte with another."""
    for entry in entries:
        if entry.offset % alignment:
            cursor.fail(
                f"tensor {entry.name}: offset",
                f"{entry.offset} is not a multiple of the alignment {alignment}",
            )
        end = data_start + entry.offset + entry.byte_count
        if end > file_bytes:
            cursor.fail(
                f"tensor {entry.name}: offset",
                f"its data ends at byte {end} and the file at {file_bytes}",
            )
    in_order = sorted(entries, key=lambda entry: entry.offset)
    for first, second in pairwise(in_order):
        if first.offset + first.byte_count > second.offset:
            cursor.fail(f"tensor {second.name}: offset", f"its data overlaps that of {first.name}")
