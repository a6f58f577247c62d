"""GGUF files made byte by byte, so that tests can make wrong ones too."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Entry = tuple[str, int, bytes]
TensorLine = tuple[str, Sequence[int], int, int]  # name, dimensions as in the file, type, offset


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_bytes(
    entries: Sequence[Entry] = (),
    tensors: Sequence[TensorLine] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    for key, value_type, value in entries:
        header += string(key) + struct.pack("<I", value_type) + value
    for name, dimensions, tensor_type, offset in tensors:
        header += string(name) + struct.pack("<I", len(dimensions))
        header += struct.pack(f"<{len(dimensions)}Q", *dimensions)
        header += struct.pack("<IQ", tensor_type, offset)
    return header + b"\0" * (-len(header) % alignment) + data


WriteModel = Callable[[bytes], Path]


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


class GgufBytes:
    """The helpers above, as a fixture: tests cannot import this file."""

    build = staticmethod(gguf_bytes)
    string = staticmethod(string)


@pytest.fixture
def gguf() -> GgufBytes:
    return GgufBytes()
