"""What commands write is the same for every command."""

import json
import time

import pytest

from headrace.cli import output


def test_json_is_indented_and_ends_with_a_newline(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_json({"a": [1], "b": "é"})
    written = capsys.readouterr().out
    assert json.loads(written) == {"a": [1], "b": "é"}
    assert written.endswith("}\n")


def test_numbers_stand_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_table(("NAME", ">COUNT"), [("a", "1"), ("b", "1,000")], empty="nothing")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("    1")
    assert lines[2].endswith("1,000")


def test_lines_have_no_trailing_blanks_and_do_not_break(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.write_table(("NAME", "DETAIL"), [("a", "x" * 150), ("b", "y")], empty="nothing")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)


def test_ids_stay_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal's
    monkeypatch.setenv("COLUMNS", "40")
    row = ("rep_01m8kz2m2p13ckt6qm935ej3ct", "dep_01m8kzjcr047jrbhvp49jfre40")
    output.write_table(("ID", "DEPLOYMENT"), [row], empty="nothing")
    output.write_fields([("deployment", " ".join(row))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(word in line for line in lines[1:] for word in row)


def test_brackets_in_values_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_fields([("model", "[red]qwen[/red] :smile:")])
    assert "[red]qwen[/red] :smile:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes(byte_count: int, text: str) -> None:
    assert output.format_bytes(byte_count) == text


def test_money_has_its_sign_before_the_dollar() -> None:
    assert output.format_dollars(-1_500_000_000) == "-$1.50"
    assert output.format_dollars(1) == "$0.000000001"


def test_times_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert output.format_time(1_790_000_000.0) == "2026-09-21 14:13"
    assert output.format_time(None) == "-"
