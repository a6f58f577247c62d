"""What a model's file says of itself."""

import hashlib
from pathlib import Path

import pytest

from headrace.sim.model_on_disk import write_model_file
from headrace.spec.models import FileHeader, VersionFile
from headrace.weights.file_facts import FileFacts, facts_of
from headrace.weights.gguf import open_gguf
from headrace.weights.gguf_writer import write_gguf
from headrace.weights.sources import ResolvedModel

digest = "ab" * 32


def facts(path: Path) -> FileFacts:
    return facts_of(ResolvedModel(path, digest, "m"))


def test_a_gguf_file_says_what_its_weights_are(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf")
    found = facts(path)
    assert found.sha256 == digest
    header = found.header
    assert (header.format, header.quantization, header.family) == ("gguf", "F16", "llama")
    with open_gguf(path) as file:
        sizes = [tensor.byte_count for tensor in file.tensors.values()]
    assert header.parameters is not None
    # Two bytes a weight but for the norms, which have four.
    assert header.parameters < sum(sizes) / 2 < header.parameters * 1.1


@pytest.mark.parametrize(
    ("content", "expected"), [(b"GGUF, and then nonsense", "gguf"), (b"something else", "")]
)
def test_a_file_that_cannot_be_read_has_its_digest(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    files = (VersionFile("m.gguf", digest, len(content)),)
    assert facts(path) == FileFacts(digest, FileHeader(format=expected), files=files)


def test_a_directory_of_a_family_that_nobody_knows_has_its_format(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Unheard"], "model_type": "x"}')
    assert facts(tmp_path) == FileFacts(digest, FileHeader())
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert facts(tmp_path) == FileFacts(digest, FileHeader(format="safetensors", family="x"))


def test_a_file_of_the_cache_goes_by_its_models_name(tmp_path: Path) -> None:
    path = tmp_path / digest
    path.write_bytes(b"w")
    assert facts(path).files == (VersionFile("m", digest, 1),)


def test_a_chat_template_is_known_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"tokenizer.chat_template": "{{ messages }}"}, [])
    assert facts(path).chat_template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()
    write_gguf(path, {}, [])
    assert facts(path).chat_template_sha256 == ""


def test_a_licence_is_a_name_and_no_book(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.license": "x" * 100_000}, [])
    assert facts(path).licence == "x" * 100
