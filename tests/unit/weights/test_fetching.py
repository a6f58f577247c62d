"""One file over HTTP into the cache: resumed, verified, once."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import DigestMismatch, SourceError
from headrace.sim.file_server import ServerScript, served_content, served_digest
from headrace.sim.progress import RecordingProgress
from headrace.weights import sources
from headrace.weights.cache import ModelCache, key_of

Resolve = Callable[..., sources.ResolvedModel]


def test_a_url_is_fetched_once_and_then_found(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    progress = RecordingProgress()
    first = resolve(url, tmp_path, progress)
    assert first.path.read_bytes() == served_content
    assert (first.sha256, first.name) == (served_digest, "tiny")
    assert first.path == tmp_path / "blobs" / "sha256" / served_digest
    assert progress.steps == [(len(served_content), "fetching tiny")]
    assert progress.done_bytes == [len(served_content)]
    assert progress.finished == 1
    assert resolve(url, tmp_path) == first
    assert len(script.requests) == 1
    assert list((tmp_path / "partial").iterdir()) == []


def test_the_same_bytes_under_another_reference_are_not_fetched_again(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    resolve(url, tmp_path)
    resolve(f"{url}?other#sha256={served_digest}", tmp_path)
    assert len(script.requests) == 1


def test_lost_connections_are_continued(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after = [100_000, 200_000, 0, 50_000]
    pauses: list[float] = []
    assert resolve(url, tmp_path, pauses=pauses).sha256 == served_digest
    ranges = [request.get("Range") for request in script.requests]
    assert ranges == [None, "bytes=100000-", "bytes=300000-", "bytes=300000-", "bytes=350000-"]
    assert {request.get("If-Range") for request in script.requests[1:]} == {'"v1"'}
    assert pauses == [0.5, 0.5, 1.0, 0.5]


def test_a_download_that_failed_is_continued_by_the_next_start(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after = [300_000] + [0] * 4
    with pytest.raises(SourceError, match="300000 bytes fetched so far are kept"):
        resolve(url, tmp_path)
    assert len(script.requests) == 5
    assert resolve(url, tmp_path).sha256 == served_digest
    assert script.requests[-1]["Range"] == "bytes=300000-"


def test_a_server_that_ignores_ranges_starts_over(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after, script.honours_range = [500_000], False
    assert resolve(url, tmp_path).sha256 == served_digest
    assert len(script.requests) == 2


def test_a_file_that_changed_meanwhile_is_fetched_anew(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after = [500_000] + [0] * 4
    with pytest.raises(SourceError):
        resolve(url, tmp_path)
    script.content, script.etag = served_content[::-1], '"v2"'
    assert resolve(url, tmp_path).path.read_bytes() == served_content[::-1]


def test_without_a_validator_or_digest_nothing_is_continued(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after, script.etag = [500_000], ""
    assert resolve(url, tmp_path).sha256 == served_digest
    assert all("Range" not in request for request in script.requests)


def test_with_a_digest_a_server_without_validator_may_continue(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.drop_after, script.etag = [500_000], ""
    assert resolve(f"{url}#sha256={served_digest}", tmp_path).sha256 == served_digest
    assert script.requests[1]["Range"] == "bytes=500000-"


def test_a_body_of_unstated_length_is_read_to_its_end(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.names_length = False
    progress = RecordingProgress()
    assert resolve(f"{url}#sha256={served_digest}", tmp_path, progress).sha256 == served_digest
    assert progress.steps == [(None, "fetching tiny")]


def test_wrong_bytes_are_removed_and_both_digests_named(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.content = b"something else"
    actual = hashlib.sha256(script.content).hexdigest()
    with pytest.raises(DigestMismatch) as raised:
        resolve(f"{url}#sha256={served_digest}", tmp_path)
    assert served_digest in raised.value.message
    assert actual in raised.value.message
    assert list((tmp_path / "partial").iterdir()) == []
    assert not (tmp_path / "blobs").exists()


def test_bad_bytes_left_by_an_earlier_try_are_fetched_again(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    partial = ModelCache(tmp_path).partial_path(served_digest)
    partial.write_bytes(b"garbage")
    assert resolve(f"{url}#sha256={served_digest}", tmp_path).path.read_bytes() == served_content
    assert [request.get("Range") for request in script.requests] == ["bytes=7-", None]


def test_more_bytes_than_the_file_has_are_fetched_again(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    partial = ModelCache(tmp_path).partial_path(served_digest)
    partial.write_bytes(served_content + b"more")
    assert resolve(f"{url}#sha256={served_digest}", tmp_path).path.read_bytes() == served_content


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_final_and_says_what_to_do(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path, status: int
) -> None:
    script.statuses = [status]
    with pytest.raises(SourceError, match=f"answered {status}; "):
        resolve(f"{url}?token=secret", tmp_path)
    assert len(script.requests) == 1


def test_a_busy_server_is_asked_again(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.statuses = [503, 429]
    assert resolve(url, tmp_path).sha256 == served_digest


def test_nobody_listening_is_a_source_error(resolve: Resolve, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="check the network"):
        resolve("http://127.0.0.1:1/tiny.gguf", tmp_path)


def test_query_and_password_stay_out_of_messages(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.statuses = [404]
    with pytest.raises(SourceError) as raised:
        resolve(url.replace("http://", "http://user:pass@") + "?signature=abc", tmp_path)
    assert "abc" not in raised.value.message
    assert "pass" not in raised.value.message


def test_a_redirect_to_plain_http_elsewhere_is_refused(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.redirect_to = "http://models.example/tiny.gguf"
    with pytest.raises(SourceError, match="only https://"):
        resolve(url.replace("/tiny.gguf", "/redirect"), tmp_path)


def test_a_redirect_on_loopback_is_followed(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    script.redirect_to = url
    assert resolve(url.replace("/tiny.gguf", "/redirect"), tmp_path).sha256 == served_digest


def test_processes_take_turns_and_the_second_finds_the_file(
    resolve: Resolve, url: str, script: ServerScript, tmp_path: Path
) -> None:
    cache = ModelCache(tmp_path)
    results: list[sources.ResolvedModel] = []
    with cache.lock(key_of(url)):
        thread = threading.Thread(target=lambda: results.append(resolve(url, tmp_path)))
        thread.start()
        path = cache.partial_path("other")
        path.write_bytes(served_content)
        cache.adopt(path, served_digest)
        cache.remember(key_of(url), url, served_digest)
    thread.join()
    assert results[0].sha256 == served_digest
    assert script.requests == []


def test_a_full_disk_says_what_to_do_and_keeps_what_fitted(
    resolve: Resolve, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(SourceError, match="HEADRACE_CACHE_DIR"):
        resolve(url, tmp_path)


def test_a_cache_that_cannot_be_written_is_a_source_error(
    resolve: Resolve, url: str, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(SourceError, match="HEADRACE_CACHE_DIR"):
        resolve(url, tmp_path / "cache")
