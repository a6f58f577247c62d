from pathlib import Path

import pytest

from headrace.weights.cache import ModelCache, key_of

digest = "ab" * 32


def test_what_was_remembered_is_found(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    assert cache.find("key") is None
    cache.remember("key", "hf://a/b/c", digest)
    assert ModelCache(tmp_path).find("key") == digest
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["key.json"]


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"sha256": 5}', '{"sha256": "../../x"}'])
def test_a_damaged_record_is_as_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "key.json").write_text(record)
    assert ModelCache(tmp_path).find("key") is None


def test_a_blob_is_whole_read_only_and_under_its_digest(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    partial = cache.partial_path("key")
    partial.write_bytes(b"model")
    blob = cache.adopt(partial, digest)
    assert blob == tmp_path / "blobs" / "sha256" / digest
    assert blob.read_bytes() == b"model"
    assert blob.stat().st_mode & 0o777 == 0o444
    assert not partial.exists()


def test_any_reference_has_a_key() -> None:
    assert key_of("a") != key_of("b")
    assert len(key_of("päth\udcff")) == 64
