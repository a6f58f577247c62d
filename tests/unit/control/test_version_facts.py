"""What was declared of a version against what its file says."""

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.control.version_facts import contradictions, described, with_local_header
from headrace.sim.model_on_disk import write_model_file
from headrace.spec.models import FileHeader, ModelVersion, VersionFile
from headrace.weights.file_facts import FileFacts

generator = FileHeader(
    format="gguf",
    family="llama",
    quantization="Q4_K",
    parameters=8_030_000_000,
    context_length=8192,
    capabilities=("completions", "chat"),
)
encoder = FileHeader(format="safetensors", capabilities=("embeddings",), context_length=512)


def version(header: FileHeader | None = generator, **declared: Any) -> ModelVersion:
    fields: dict[str, Any] = {"source": "m.gguf", **declared}
    return ModelVersion(
        id="ver_1", name="v1", parent_id="mod_1", create_time=0.0, header=header, **fields
    )


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"context_length": 8192},
        {"context_length": 1024},
        {"format": "GGUF"},
        {"parameters": 8_000_000_000},
        {"capabilities": ("chat",)},
        {"capabilities": ("vision",)},  # its eyes may lie in another file
        {"header": None, "context_length": 1 << 20},
    ],
)
def test_what_narrows_or_rounds_contradicts_nothing(declared: dict[str, Any]) -> None:
    assert contradictions(version(**declared)) == []


@pytest.mark.parametrize(
    ("header", "declared", "field", "is_certain"),
    [
        (generator, {"context_length": 8193}, "context_length", True),
        (generator, {"format": "safetensors"}, "format", True),
        (generator, {"parameters": 70_000_000_000}, "parameters", False),
        (generator, {"capabilities": ("chat", "tools")}, "capabilities", False),
        (generator, {"capabilities": ("embeddings",)}, "capabilities", False),
        (encoder, {"capabilities": ("chat", "embeddings")}, "capabilities", True),
    ],
)
def test_a_contradiction_is_told_by_its_field(
    header: FileHeader, declared: dict[str, Any], field: str, is_certain: bool
) -> None:
    (found,) = contradictions(version(header, **declared))
    assert (found.field, found.is_certain) == (field, is_certain)


def test_a_file_that_lies_here_refuses_what_cannot_be_true(tmp_path: Path) -> None:
    path = str(write_model_file(tmp_path / "m.gguf"))
    read = with_local_header(version(None, source=path))
    assert read.header is not None
    assert read.header.family == "llama"
    with pytest.raises(InvalidRequest, match="context"):
        with_local_header(version(None, source=path, context_length=1 << 23))
    doubtful = with_local_header(version(None, source=path, parameters=1 << 40))
    assert [found.field for found in contradictions(doubtful)] == ["parameters"]


def test_abilities_are_as_declared_and_else_as_the_file_says() -> None:
    assert version().abilities == ("completions", "chat")
    assert version().writes_text
    assert not version(encoder).writes_text
    assert version(encoder, capabilities=("chat",)).writes_text
    assert version(None).writes_text


def test_the_first_whole_read_says_what_the_file_is_and_later_ones_change_nothing() -> None:
    told = described(version(encoder), FileFacts("ab" * 32, generator))
    assert told.header == generator, "the file changed before its bytes were known"
    assert described(told, FileFacts("cd" * 32, encoder)) == told


def test_the_files_are_those_of_the_bytes_that_the_version_means() -> None:
    files = (VersionFile("m.gguf", "ab" * 32, 7),)
    read = FileFacts("ab" * 32, generator, files=files)
    other = FileFacts("cd" * 32, generator, files=(VersionFile("m.gguf", "cd" * 32, 8),))

    told = described(version(), read)
    assert told.files == files
    assert described(told, other).files == files
    assert described(version(sha256="ab" * 32), other).files == ()
    assert described(version(sha256="ab" * 32), read).files == files
