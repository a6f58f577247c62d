"""`headrace top` shows the newest point, goodput by model, and says so where there is none."""

from rich.console import Console

from headrace.cli.top import (
    Figures,
    Goodput,
    LiveFigures,
    ModelFigures,
    Point,
    Window,
    drawn,
    sparkline,
)


def text_of(figures: Figures) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(drawn(figures))
    return captured.get()


def test_the_newest_point_and_the_goodput_are_shown() -> None:
    point = Point(1.5, 60.0, 0.075, None, 0.9, 3, 1)
    windows = [Window(300.0, 20, 0.9, 10.0), Window(3600.0, 200, 0.95, 5.0)]
    text = text_of(
        Figures(LiveFigures("serving", [point], 3.2), Goodput([ModelFigures("small", windows)]))
    )
    for shown in ("serving, a request succeeded 3 s ago", "1.50", "0.075 s", "5 min", "1 h"):
        assert shown in text
    assert "95.0% of 200" in text
    assert "5.0 x" in text


def test_without_samples_there_is_no_figure() -> None:
    assert "none yet" in text_of(Figures(LiveFigures("quiet", []), Goodput([])))


def test_a_line_of_bars_is_as_high_as_its_highest_and_has_gaps() -> None:
    assert sparkline([0.0, None, 1.0, 2.0]) == "▁ ▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
