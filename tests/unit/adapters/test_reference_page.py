from pathlib import Path

import pytest

from headrace.adapters.reference_page import page, trap_cells
from headrace.adapters.registry import all_adapters

reference = Path(__file__).parents[3] / "docs" / "reference" / "engines.md"


def test_the_page_is_what_the_adapters_say() -> None:
    assert reference.read_text() == page(), (
        "run: python -m headrace.adapters.reference_page > docs/reference/engines.md"
    )


def test_every_engine_of_others_has_traps_with_versions_and_answers() -> None:
    for adapter in all_adapters:
        if adapter.name != "headrace":
            section = page([adapter]).rpartition("| versions | trap |")[2]
            assert section.count("\n|") >= 4, adapter.name


def test_the_tests_that_it_names_exist() -> None:
    root = reference.parents[2]
    for adapter in all_adapters:
        first = adapter.facts.tests.split(",")[0]
        assert (root / first).is_file()


def test_a_trap_is_cut_into_its_parts() -> None:
    assert trap_cells("1.x: a: b -> do c") == ("1.x", "a: b", "do c")
    with pytest.raises(AssertionError, match="without an answer"):
        trap_cells("1.x: a")
