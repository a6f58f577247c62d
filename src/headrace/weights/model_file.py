"""Opens any model that headrace reads: a GGUF file, or a directory in Hugging Face's layout."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from headrace.weights.gguf import open_gguf
from headrace.weights.huggingface.directory import open_directory
from headrace.weights.tensor import Tensor


class ModelFile(Protocol):
    """An open model in GGUF's terms, wherever it comes from."""

    @property
    def path(self) -> Path:
        """Where it lies."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """GGUF's keys and values."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by its GGUF name."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What people should know about how it was read."""
        ...


@contextmanager
def open_model(path: Path) -> Iterator[ModelFile]:
    """The model at a path; ModelFileError says what is wrong with it."""
    if path.is_dir():
        yield open_directory(path)
        return
    with open_gguf(path) as file:
        yield file
