"""`headrace quantize` as people type it; what it writes is tested in unit/weights."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.sim.model_on_disk import write_model_file
from headrace.weights.gguf import GgufFile, open_gguf


def test_a_file_that_is_there_is_not_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    source = write_model_file(tmp_path / "weir.gguf")
    words = ["quantize", str(source), str(out), "--type", "q4_k"]
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_several_types_with_an_importance_go_to_a_directory_with_a_report(tmp_path: Path) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    (tmp_path / "text").write_text("w1 w2 w3 " * 20)
    words = ["quantize", str(source), str(tmp_path / "out"), "--type", "q4_0", "--type", "iq4_xs"]
    words += ["--imatrix", str(tmp_path / "text"), "--report", str(tmp_path / "report.json")]
    words += ["--report-text", str(tmp_path / "text"), "--cache-dir", str(tmp_path / "cache")]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == ["weir.IQ4_XS.gguf", "weir.Q4_0.gguf"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["type"] for entry in report["types"]] == ["q4_0", "iq4_xs"]


def test_what_was_changed_in_reading_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_noted(path: Path) -> Iterator[GgufFile]:
        with open_gguf(path) as file:
            file.notes = ["weights for images are left out"]
            yield file

    monkeypatch.setattr("headrace.cli.quantize.open_model", open_noted)
    source = write_model_file(tmp_path / "weir.gguf")
    words = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q8_0"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--cache-dir", str(tmp_path / "cache")])
    assert "weights for images are left out" in capsys.readouterr().err


def test_an_importance_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    words = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0"]
    words += ["--imatrix", str(tmp_path / "missing"), "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 1
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"), [(b"\0" * 50, "is no text"), (b"weir", "say little of what matters")]
)
def test_what_says_nothing_of_importance_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    (tmp_path / "matrix").write_bytes(data)
    words = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0"]
    words += ["--imatrix", str(tmp_path / "matrix"), "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_what_is_no_plain_file_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ["quantize", str(source), str(pipe), "--cache-dir", str(tmp_path / "cache"), "--force"]
    assert main([*words, "--type", "q4_0"]) == 1
    assert "is no plain file" in capsys.readouterr().err
    assert main([*words, "--type", "q4_0", "--type", "q8_0"]) == 1
    assert "several types need one" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_the_model_that_is_read_is_not_replaced_by_what_is_made_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    before = source.read_bytes()
    words = ["quantize", str(source), str(source), "--type", "q4_0", "--force"]
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 1
    assert "is the model that is read" in capsys.readouterr().err
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("report", "text", "said"),
    [
        ("missing/report.json", "text", "in a directory that is there"),
        (".", "text", "name a file to write"),
        ("report.json", "missing", "cannot be read"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], report: str, text: str, said: str
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    (tmp_path / "text").write_text("w1 w2 w3 " * 20)
    words = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0"]
    words += ["--report", str(tmp_path / report), "--report-text", str(tmp_path / text)]
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_a_report_that_the_disk_does_not_take_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model_file(tmp_path / "weir.gguf")
    (tmp_path / "text").write_text("w1 w2 w3 " * 20)
    (tmp_path / "report.json").symlink_to("/dev/full")
    words = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0"]
    words += ["--report", str(tmp_path / "report.json"), "--report-text", str(tmp_path / "text")]
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 1
    assert "No space left on device" in capsys.readouterr().err
