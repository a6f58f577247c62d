"""`headrace check`: what it tells of a whole model, and what it refuses."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.sim.model_on_disk import write_model_file


def run(tmp_path: Path, *words: str) -> int:
    try:
        return main(["check", *words, "--cache-dir", str(tmp_path / "cache")])
    except SystemExit as done:  # what click makes of success
        return int(str(done.code))


def test_a_whole_model_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model_file(tmp_path / "weir.gguf", confidence=0.01)
    assert run(tmp_path, str(path)) == 0
    said = capsys.readouterr().out
    for part in ("weir, sha256", "every number finite", "320 tokens", "absent: it completes"):
        assert part in said
    assert "over 128 tokens" in said  # of Python's own documentation


def test_a_bad_number_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model_file(tmp_path / "weir.gguf", nan_in="blk.0.ffn_up.weight")
    assert run(tmp_path, str(path)) == 1
    assert "tensor blk.0.ffn_up.weight has a value" in capsys.readouterr().err


def test_a_model_that_is_worse_than_guessing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model_file(tmp_path / "weir.gguf")
    assert run(tmp_path, str(path)) == 1
    assert "its weights or its tokenizer are damaged" in capsys.readouterr().err


def test_a_text_that_is_none_is_the_callers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model_file(tmp_path / "weir.gguf")
    assert run(tmp_path, str(path), "--text", str(tmp_path / "missing")) == 1
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "empty").write_text("")
    assert run(tmp_path, str(path), "--text", str(tmp_path / "empty")) == 1
    assert "give a few hundred words" in capsys.readouterr().err
