"""safetensors files, read in place: tensors as views of the mapped file.

Hostile input: the header's size, names, types, shapes and byte ranges are checked against limits
and the file before they are used. Format: a 64-bit header length, a JSON object
{name: {"dtype", "shape", "data_offsets"}}, the data.
"""

import json
import mmap
from math import prod
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.tensor import Bytes, Tensor, TensorType

header_bytes_max = 100 << 20  # the format's own limit
tensors_max = 100_000
dimensions_max = 8
type_bytes = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
# What may stand in a model by itself; the others are parts of quantized weights.
plain_types = {
    "F32": TensorType.F32,
    "F16": TensorType.F16,
    "BF16": TensorType.BF16,
    "I64": TensorType.I64,
}


class StoredTensor(NamedTuple):
    """A tensor as the file has it, of any of the format's types."""

    name: str
    dtype: str  # the format's name
    shape: tuple[int, ...]
    data: Bytes  # (byte_count,) read-only, into the mapped file


class _Entry(msgspec.Struct):
    """One tensor's line in the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file of float weights; ModelFileError says what is wrong with it.

    Cost: the header is read; no tensor's data is."""
    return {name: plain_tensor(stored) for name, stored in read_stored(path).items()}


def plain_tensor(stored: StoredTensor) -> Tensor:
    """A stored tensor as a weight by itself; ModelFileError if its type is only a part of one."""
    if stored.dtype not in plain_types:
        raise ModelFileError(
            f"tensor {stored.name} has type {stored.dtype}; by itself headrace reads "
            f"{', '.join(plain_types)}, and parts of quantized weights where config.json's "
            "quantization_config says of which.",
            field=f"tensor {stored.name}",
        )
    return Tensor(stored.name, plain_types[stored.dtype], stored.shape, stored.data)


def read_stored(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file by its name; ModelFileError says what is wrong with it.

    Cost: the header is read; no tensor's data is."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        _fail(path, "file", f"cannot be read ({error})")
    if len(data) < 8:
        _fail(path, "header", "the file is shorter than its header's length")
    header_bytes = int.from_bytes(data[:8], "little")
    if not 2 <= header_bytes <= min(header_bytes_max, len(data) - 8):
        _fail(path, "header", f"{header_bytes} bytes of header in a file of {len(data)}")
    start = 8 + header_bytes
    entries = _read_header(path, data[8:start])
    whole = np.frombuffer(data, np.uint8)
    tensors = {}
    for name, entry in entries.items():
        byte_count = _checked(path, name, entry, len(data) - start)
        first = start + entry.data_offsets[0]
        view = whole[first : first + byte_count]
        tensors[name] = StoredTensor(name, entry.dtype, tuple(entry.shape), view)
    return tensors


def _read_header(path: Path, text: bytes) -> dict[str, _Entry]:
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            _fail(path, "header", "is not an object")
        header.pop("__metadata__", None)
        if len(header) > tensors_max:
            _fail(path, "header", f"{len(header)} tensors; {tensors_max} are allowed")
        return msgspec.convert(header, dict[str, _Entry])
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        _fail(path, "header", f"is not the format's JSON ({error})")


def _checked(path: Path, name: str, entry: _Entry, data_bytes: int) -> int:
    field = f"tensor {name}"
    if entry.dtype not in type_bytes:
        _fail(path, field, f"has type {entry.dtype}; headrace reads {', '.join(type_bytes)}")
    if len(entry.shape) > dimensions_max or any(side < 0 for side in entry.shape):
        _fail(path, field, f"has shape {entry.shape}")
    first, end = entry.data_offsets
    byte_count = prod(entry.shape) * type_bytes[entry.dtype]
    if not 0 <= first <= end <= data_bytes or end - first != byte_count:
        _fail(
            path,
            field,
            f"lies at bytes {first} to {end} of {data_bytes}, and needs {byte_count}; the file is "
            "cut short or corrupt",
        )
    return byte_count


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(f"{path}: {field}: {problem}.", file=str(path), field=field)
