"""The generated reference is what the code says now; `make reference` writes it anew."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main, reference_pages
from headrace.observability import reference_page as metrics_reference

docs = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("cli.md", reference_pages.cli_page),
        ("errors.md", reference_pages.errors_page),
        ("metrics.md", metrics_reference.page),
    ],
)
def test_the_page_is_current(name: str, page: Callable[[], str]) -> None:
    assert (docs / name).read_text() == page(), "run `make reference`"


def test_every_command_is_in_the_reference() -> None:
    page = reference_pages.cli_page()
    for command in main.command_names():
        assert f"## headrace {command}" in page


def test_metrics_have_units_and_one_place() -> None:
    names = [
        metric.name
        for _, module in metrics_reference.pages
        for metric in metrics_reference.declarations(module)
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith("headrace_") for name in names)
