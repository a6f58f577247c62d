"""Writes GGUF files: metadata and tensors in order, atomically, one piece of data at a time."""

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from math import prod
from pathlib import Path

import numpy as np

from headrace.base.errors import SetupError
from headrace.weights.file_use import hold_while_open, remove_unless_used
from headrace.weights.gguf import magic
from headrace.weights.gguf_metadata import scalar_layouts, type_array, type_bool, type_string
from headrace.weights.tensor import TensorType, block_layouts

alignment = 32
version = 3
type_u32, type_i32, type_f32, type_u64 = 4, 5, 6, 10
# Numbers that readers want as floats, also where a configuration wrote them without a point.
float_keys = re.compile(
    r".*(epsilon|\.scale|_scale|freq_base|freq_base_swa|factor|softcapping|beta_fast|beta_slow)"
)
array_types = {np.dtype(layout.format): kind for kind, layout in scalar_layouts.items()}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to write: its line in the header, and its bytes when they are asked for."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[bytes]]

    @property
    def byte_count(self) -> int:
        """Bytes of its data."""
        layout = block_layouts[self.type]
        return prod(self.shape) // layout.values * layout.bytes


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Sequence[TensorPlan]) -> None:
    """Write a whole file beside its place, then rename it; SetupError if the disk refuses.

    What a writer that was killed left there of the same file is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        with suppress(OSError):  # another user's
            remove_unless_used([left])
    try:
        with temporary.open("wb") as file:
            hold_while_open(file)
            file.write(_header(metadata, tensors))
            for tensor in tensors:
                written = 0
                for piece in tensor.pieces():
                    written += file.write(piece)
                assert written == tensor.byte_count, tensor.name
                file.write(bytes(-written % alignment))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SetupError(
            f"{path}: cannot be written ({error.strerror}); check the directory and its free space."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _header(metadata: Mapping[str, object], tensors: Sequence[TensorPlan]) -> bytes:
    parts = [struct.pack("<IIQQ", magic, version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = _value(key, value)
        parts.append(_string(key) + struct.pack("<I", kind) + data)
    offset = 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]  # the file has the contiguous one first
        parts.append(_string(tensor.name) + struct.pack("<I", len(dimensions)))
        parts.append(struct.pack(f"<{len(dimensions)}QIQ", *dimensions, tensor.type, offset))
        offset += tensor.byte_count + -tensor.byte_count % alignment
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment)


def _value(key: str, value: object) -> tuple[int, bytes]:
    """A value's type number and its bytes."""
    if isinstance(value, str):
        return type_string, _string(value)
    if isinstance(value, bool | int | float):
        return _number(key, value)
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        flags = value.dtype == np.bool_
        kind = type_bool if flags else array_types[value.dtype.newbyteorder("<")]
        return type_array, _u32(kind) + struct.pack("<Q", len(value)) + value.tobytes()
    if isinstance(value, list):
        texts = b"".join(_string(text) for text in value)
        return type_array, _u32(type_string) + struct.pack("<Q", len(value)) + texts
    raise SetupError(f"{key}: a {type(value).__name__} cannot be written to a GGUF file.")


def _number(key: str, value: float) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return type_bool, struct.pack("<B", value)
    if isinstance(value, float) or float_keys.fullmatch(key):
        return type_f32, struct.pack("<f", value)
    if value < 0:
        return type_i32, struct.pack("<i", value)
    return (type_u64, struct.pack("<Q", value)) if value >= 1 << 32 else (type_u32, _u32(value))


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
