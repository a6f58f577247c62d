"""Usage as bars: the terminal's are as long as they are much, and files are pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from headrace.base.errors import ConfigurationError
from headrace.cli.usage_plot import (
    Bar,
    Measure,
    bar_characters,
    chart_of,
    day_bar,
    groups_max,
    write_bars,
    write_file,
)
from headrace.spec.settlements import Outcome, Settlement, TokenUsage, UsageSource

from .conftest import RunningPlatform

bars = [
    Bar("2026-11-28", "small", 300),
    Bar("2026-11-29", "small", 100),
    Bar("2026-11-29", "big", 500),
]


def test_days_are_in_order_and_the_largest_group_comes_first() -> None:
    chart = chart_of([bars[2], bars[0], bars[1]])
    assert chart.days == ["2026-11-28", "2026-11-29"]
    assert chart.groups == ["big", "small"]
    assert chart.day_total("2026-11-29") == 600


def test_a_bar_is_as_long_as_its_day_is_much() -> None:
    chart = chart_of(bars)
    assert len(day_bar(chart, "2026-11-29", 600).plain) == bar_characters
    assert len(day_bar(chart, "2026-11-28", 600).plain) == bar_characters // 2
    assert day_bar(chart, "2026-11-28", 0).plain == ""


def test_too_many_groups_are_added_up() -> None:
    many = [Bar("2026-11-29", f"model-{number}", number + 1) for number in range(groups_max + 3)]
    chart = chart_of(many)
    assert len(chart.groups) == groups_max
    assert chart.groups[-1] == "other"
    assert chart.day_total("2026-11-29") == sum(bar.value for bar in many)


def test_the_terminal_shows_every_day_its_number_and_a_legend() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        write_bars(chart_of(bars), Measure.TOKENS, console)
    text = captured.get()
    for shown in ("2026-11-28", "300", "2026-11-29", "600", "big", "small"):
        assert shown in text


@pytest.mark.parametrize(("name", "start"), [("u.png", b"\x89PNG"), ("u.svg", b"<?xml")])
def test_a_file_is_the_picture_that_its_name_says(tmp_path: Path, name: str, start: bytes) -> None:
    write_file(chart_of(bars), Measure.COST, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--plot-to"):
        write_file(chart_of(bars), Measure.COST, tmp_path / "u.docx")


def test_the_command_draws_what_the_ledger_has(
    platform: RunningPlatform, run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("usage", "--plot") == 0
    assert "no usage" in capfd.readouterr().err
    usage = TokenUsage(prompt_tokens=1_000, cached_tokens=0, completion_tokens=234)
    platform.database.ledger.post(
        [
            Settlement(
                request_id="req-1",
                tenant_id="ten_gone",
                project_id="prj_gone",
                key_id="key_gone",
                model="small",
                usage=usage,
                outcome=Outcome.FINISHED,
                source=UsageSource.ENGINE,
                price_book_id=None,
                charge=None,
                settle_time=1_790_000_000.0,
            )
        ]
    )
    assert run("usage", "--by", "model,day", "--plot") == 0
    shown = capfd.readouterr().out
    assert "2026-09-21" in shown
    assert "1,234" in shown
    assert "small" in shown
