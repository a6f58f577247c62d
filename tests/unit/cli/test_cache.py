"""`headrace cache`: list and prune."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.cache import parse_size_bytes
from headrace.cli.main import main
from headrace.weights.cache import ModelCache, key_of


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    cache = ModelCache(tmp_path)
    blob = cache.blob_path("a" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 2048)
    cache.remember(key_of("some"), "hf://some/model.gguf", "a" * 64)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["cache", *words])
    assert not ended.value.code
    return capsys.readouterr().out


def test_list_and_prune_say_what_there_is(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--cache-dir", str(cache_dir))
    assert "hf://some/model.gguf" in run(capsys, "list", *place)
    [row] = json.loads(run(capsys, "list", *place, "--json"))
    assert (row["kind"], row["size_bytes"], row["is_in_use"]) == ("model", 2048, False)
    assert "Nothing to remove" in run(capsys, "prune", *place, "--unused", "30d")
    assert "2.0 KiB" in run(capsys, "prune", *place, "--max-size", "1kB", "--dry-run")
    assert "hf://some" in run(capsys, "prune", *place, "--max-size", "1kB")
    assert "no models yet" in run(capsys, "list", *place)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("17", 17), ("2k", 2000), ("1.5GiB", 3 << 29), ("20 gb", 20 * 10**9)],
)
def test_sizes_as_people_type_them(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text, "--max-size") == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "many", "1XB", "1e9", "9999999GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--max-size"):
        parse_size_bytes(text, "--max-size")
