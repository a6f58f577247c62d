"""Hugging Face: files at their commit, whole repositories, digests of the hub's own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import DigestMismatch, SourceError
from headrace.sim.file_server import ServerScript, served_digest
from headrace.sim.progress import SilentProgress
from headrace.weights import sources
from headrace.weights.download import DownloadTarget, download
from headrace.weights.hub import hub_listing
from headrace.weights.partial_file import PartialFile
from headrace.weights.reference import HubRepository

Resolve = Callable[..., sources.ResolvedModel]


@pytest.mark.usefixtures("hub")
def test_a_hub_file_is_fetched_at_its_commit_with_the_token(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    found = resolve("hf://owner/repo/dir/tiny.gguf", tmp_path)
    assert (found.name, found.sha256) == ("tiny", served_digest)
    assert [request["path"] for request in script.requests] == [
        "/owner/repo/resolve/main/dir/tiny.gguf",
        "/owner/repo/resolve/c0ffee0/dir/tiny.gguf",
    ]
    assert {request["Authorization"] for request in script.requests} == {"Bearer hf_secret"}


@pytest.mark.usefixtures("hub")
def test_a_hub_file_is_verified_by_the_hubs_own_digest(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.content = b"corrupted"
    with pytest.raises(DigestMismatch, match=served_digest):
        resolve("hf://owner/repo/tiny.gguf", tmp_path)


@pytest.mark.usefixtures("hub")
def test_a_hub_file_of_another_digest_is_not_fetched(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    with pytest.raises(DigestMismatch, match="Nothing was fetched"):
        resolve(f"hf://owner/repo/tiny.gguf#sha256={'0' * 64}", tmp_path)
    assert len(script.requests) == 1


@pytest.mark.usefixtures("hub")
def test_a_gated_hub_file_says_how_to_get_it(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.statuses = [401]
    with pytest.raises(SourceError, match="HF_TOKEN"):
        resolve("hf://owner/repo/tiny.gguf", tmp_path)


def test_credentials_do_not_follow_a_redirect_to_another_host(
    url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.redirect_to = url.replace("127.0.0.1", "localhost")
    target = DownloadTarget(
        url.replace("/tiny.gguf", "/redirect"), "tiny", {"Authorization": "Bearer hf_secret"}, True
    )
    with PartialFile(tmp_path / "partial") as partial:
        download(target, partial, SilentProgress(), pause=lambda seconds: None)
        assert partial.sha256 == served_digest
    first, second = script.requests
    assert first["Authorization"] == "Bearer hf_secret"
    assert "Authorization" not in second


weights = bytes(range(200)) * 100
model_files = {
    "README.md": b"what it is",
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "model.safetensors": weights,
    "pytorch_model.bin": bytes(5000),
    "onnx/model.onnx": bytes(5000),
}
index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
sharded = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(index).encode(),
    "model-1-of-2.safetensors": weights,
    "model-2-of-2.safetensors": weights[::-1],
    "consolidated.safetensors": bytes(5000),
}


@pytest.mark.usefixtures("hub")
def test_a_repository_becomes_a_directory_of_what_the_model_needs(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = model_files
    found = resolve("hf://owner/repo", tmp_path)
    taken = {
        str(file.relative_to(found.path)): file.read_bytes()
        for file in found.path.rglob("*")
        if file.is_file()
    }
    needed = ("config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors")
    assert taken == {name: model_files[name] for name in needed}
    assert found.name == "repo"
    assert found.path.name == found.sha256
    assert script.paths[0] == "/api/models/owner/repo/revision/main?blobs=true"
    assert {request["Authorization"] for request in script.requests} == {"Bearer hf_secret"}


def test_a_repository_is_the_first_thing_that_a_process_fetches(
    url: str, script: ServerScript, tmp_path: Path
) -> None:
    # The hub's package imports its parts when they are first asked for; a test has had them all.
    script.repository = model_files
    program = (
        "import sys; from pathlib import Path; from headrace.sim.progress import SilentProgress; "
        "from headrace.weights.sources import resolve; "
        "print(resolve('hf://owner/repo', Path(sys.argv[1]), SilentProgress()).path)"
    )
    endpoint = {"HF_ENDPOINT": url.removesuffix("/tiny.gguf"), "HF_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "cache")],
        env=os.environ | endpoint,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = Path(ended.stdout.strip())
    assert (found / "model.safetensors").read_bytes() == weights


@pytest.mark.usefixtures("hub")
def test_a_repository_that_is_here_is_not_asked_for_again(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = model_files
    found = resolve("hf://owner/repo@v1", tmp_path)
    asked = len(script.requests)
    assert resolve("hf://owner/repo@v1", tmp_path) == found
    assert len(script.requests) == asked
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    assert resolve("hf://owner/repo@v1", moved).path.joinpath("config.json").is_file()
    assert len(script.requests) == asked


@pytest.mark.usefixtures("hub")
def test_the_same_directory_on_disk_has_the_same_digest(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = {name: model_files[name] for name in ("config.json", "model.safetensors")}
    found = resolve("hf://owner/repo", tmp_path / "cache")
    for name, data in script.repository.items():
        (tmp_path / name).write_bytes(data)
    assert resolve(str(tmp_path), tmp_path / "cache").sha256 == found.sha256


@pytest.mark.usefixtures("hub")
def test_of_a_split_model_the_indexed_files_are_fetched(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = sharded
    found = resolve("hf://owner/repo", tmp_path)
    names = {file.name for file in found.path.iterdir()}
    assert names == set(sharded) - {"consolidated.safetensors"}


@pytest.mark.usefixtures("hub")
def test_a_repository_that_was_interrupted_continues_where_it_stood(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = sharded
    script.drop_after = [10_000, 10_000, 3000] + [0] * 4
    with pytest.raises(SourceError, match="3000 bytes fetched so far are kept"):
        resolve("hf://owner/repo", tmp_path)
    asked = len(script.requests)
    found = resolve("hf://owner/repo", tmp_path)
    assert (found.path / "model-1-of-2.safetensors").read_bytes() == weights
    fetched = [request for request in script.requests[asked:] if "Range" in request]
    assert [request["Range"] for request in fetched] == ["bytes=3000-"]
    assert not any("config.json" in path for path in script.paths[asked:])


@pytest.mark.usefixtures("hub")
def test_a_file_of_a_repository_that_is_not_the_versions_is_refused_by_its_name(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = sharded
    expected = resolve("hf://owner/repo", tmp_path / "control").files
    asked = len(script.requests)

    script.repository = sharded | {"model-2-of-2.safetensors": weights[::-2] * 2}
    with pytest.raises(DigestMismatch, match=r"of model-2-of-2\.safetensors .*Nothing was fetched"):
        resolve("hf://owner/repo", tmp_path / "node", expected=expected)
    assert len(script.requests) == asked + 1  # the list of its files

    # The hub says no SHA-256 of a small file before it is fetched.
    script.repository = sharded | {"config.json": b'{"changed": true}'}
    with pytest.raises(DigestMismatch, match=r"hf://owner/repo/config\.json@.*was removed"):
        resolve("hf://owner/repo", tmp_path / "node", expected=expected)

    script.repository = sharded | {"tokenizer.json": b"{}"}  # of a later commit
    assert resolve("hf://owner/repo", tmp_path / "node", expected=expected).files == expected


@pytest.mark.usefixtures("hub")
def test_what_another_version_left_in_the_cache_is_not_taken_for_this_one(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    script.repository = sharded | {"config.json": b'{"first": true}'}
    first = resolve("hf://owner/repo", tmp_path / "node")
    script.repository = sharded
    expected = resolve("hf://owner/repo", tmp_path / "control").files

    found = resolve("hf://owner/repo", tmp_path / "node", expected=expected)
    assert found.files == expected
    assert (first.path / "config.json").read_bytes() == b'{"first": true}'


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_bytes_that_are_not_the_hubs_are_refused(
    resolve: Resolve,
    script: ServerScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    script.repository = model_files
    listing = hub_listing(HubRepository("owner/repo", "main"))
    script.repository = model_files | {name: b"x" * len(model_files[name])}
    monkeypatch.setattr("headrace.weights.bundle.hub_listing", lambda source: listing)
    with pytest.raises(
        (SourceError, DigestMismatch), match=r"hf://owner/repo/.*was (removed|fetched)"
    ):
        resolve("hf://owner/repo", tmp_path)
    assert not (tmp_path / "directories").exists() or not list(tmp_path.glob("directories/*"))


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.gguf": b"", "b.gguf": b""}, r"hf://owner/repo/FILE: a\.gguf, b\.gguf"),
        ({"README.md": b""}, "no model in Hugging Face's layout"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "no pickled ones"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, "is no index"),
        (
            {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()},
            r"names model-1-of-2\.safetensors, which is not there",
        ),
    ],
)
def test_a_repository_without_a_model_says_what_to_do(
    resolve: Resolve,
    script: ServerScript,
    tmp_path: Path,
    files: dict[str, bytes],
    problem: str,
) -> None:
    script.repository = files
    with pytest.raises(SourceError, match=problem):
        resolve("hf://owner/repo", tmp_path)


@pytest.mark.usefixtures("hub")
def test_names_that_leave_the_directory_are_not_taken(
    resolve: Resolve, script: ServerScript, tmp_path: Path
) -> None:
    escape = json.dumps({"weight_map": {"a": "../../x"}}).encode()
    script.repository = {
        "config.json": b"{}",
        "model.safetensors.index.json": escape,
        "../../x": weights,
    }
    with pytest.raises(SourceError, match="which is not there"):
        resolve("hf://owner/repo", tmp_path)
