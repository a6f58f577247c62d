"""The page of known failures names tests that are there."""

import re
from pathlib import Path

import pytest

root = Path(__file__).parents[3]
page = root / "docs/concepts/known-failures.md"
named = sorted(set(re.findall(r"`(\S+\.py)::(\w+)`", page.read_text())))


def test_every_line_names_a_test() -> None:
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    failures = [line for line in lines if not line.startswith("| failure |")]
    assert len(failures) > 40
    assert all(re.search(r"`\S+\.py::\w+` \|$", line) for line in failures)


@pytest.mark.parametrize(("file", "test"), named)
def test_what_is_named_is_there(file: str, test: str) -> None:
    assert f"def {test}(" in (root / "tests" / file).read_text()
