"""`headrace quantize` refuses before it reads; what it writes is tested in unit/weights."""

from pathlib import Path

import pytest

from headrace.cli.main import main


def test_a_file_that_is_there_is_not_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    assert main(["quantize", "source.gguf", str(out), "--type", "q4_k"]) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
