"""`headrace top` shows the newest point, and says so where there is none."""

from rich.console import Console

from headrace.cli.top import LiveFigures, Point, drawn


def text_of(figures: LiveFigures) -> str:
    console = Console(width=60, record=True)
    with console.capture() as captured:
        console.print(drawn(figures))
    return captured.get()


def test_the_newest_point_is_shown() -> None:
    point = Point(1.5, 60.0, 0.075, None, 0.9, 3, 1)
    text = text_of(LiveFigures("serving", [point]))
    assert "serving" in text
    assert "1.50" in text
    assert "0.075 s" in text
    assert "90%" in text


def test_without_samples_there_is_no_figure() -> None:
    assert "none yet" in text_of(LiveFigures("quiet", []))
