"""The pages of known failures name tests that are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

root = Path(__file__).parents[3]
pages = [
    root / "docs/concepts/known-failures.md",
    root / "docs/concepts/known-platform-failures.md",
]
reference = re.compile(r"`(\S+\.py)::(\w+)`")
named = sorted({found for page in pages for found in reference.findall(page.read_text())})


@pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)
def test_every_line_names_a_test(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    failures = [line for line in lines if not line.startswith("| failure |")]
    assert len(failures) > 40
    tests = re.compile(r"\| `\S+\.py::\w+`(, `\S+\.py::\w+`)* \|$")
    assert [line for line in failures if not tests.search(line)] == []


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize(("file", "test"), named)
def test_what_is_named_is_there(file: str, test: str) -> None:
    assert test in functions_of(root / "tests" / file)
