"""GGUF files made byte by byte, so that tests can make wrong ones too; a server of files."""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.sim.file_server import ServerScript, serve_files
from headrace.sim.progress import SilentProgress
from headrace.spec.models import VersionFile
from headrace.weights import sources
from headrace.weights.progress import Progress

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


@pytest.fixture
def script() -> ServerScript:
    """How the server behaves."""
    return ServerScript()


@pytest.fixture
def url(script: ServerScript) -> Iterator[str]:
    """A file on a loopback server."""
    with serve_files(script) as address:
        yield f"{address}/tiny.gguf"


@pytest.fixture
def hub(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback server as Hugging Face, with a token in the environment."""
    address = url.removesuffix("/tiny.gguf")

    def hub_url(repository: str, file: str, *, revision: str) -> str:
        return f"{address}/{repository}/resolve/{revision}/{file}"

    monkeypatch.setattr("huggingface_hub.hf_hub_url", hub_url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret")


Resolve = Callable[..., sources.ResolvedModel]


@pytest.fixture
def resolve() -> Resolve:
    """`sources.resolve` that waits for nothing and shows nothing."""

    def resolve(
        reference: str,
        cache: Path,
        progress: Progress | None = None,
        pauses: list[float] | None = None,
        expected: Sequence[VersionFile] = (),
    ) -> sources.ResolvedModel:
        waited: list[float] = [] if pauses is None else pauses
        shown = progress or SilentProgress()
        return sources.resolve(reference, cache, shown, pause=waited.append, expected=expected)

    return resolve
