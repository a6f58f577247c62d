import pytest

from headrace.adapters.prometheus_text import read_samples


def test_a_sample_is_summed_over_its_labels() -> None:
    text = 'tokens_total{model="a",kind="}"} 3\ntokens_total{model="b"} 4 1700000000\n'

    assert read_samples(text, ["tokens_total"]) == {"tokens_total": 7.0}


def test_a_name_is_not_found_in_a_longer_one() -> None:
    text = "tokens_total_created 5\n# HELP tokens_total Tokens.\n# TYPE tokens_total counter\n"

    assert read_samples(text, ["tokens_total"]) == {}


def test_scientific_notation_is_a_number() -> None:
    assert read_samples("a 1.5e+03", ["a"]) == {"a": 1500.0}


@pytest.mark.parametrize("bad", ["a", "a ", "a x", "a NaN", "a +Inf", "a{b 1", 'a{b="c"}'])
def test_a_bad_line_spoils_no_other(bad: str) -> None:
    assert read_samples(f"{bad}\na 2\n", ["a"]) == {"a": 2.0}


def test_braces_in_labels_and_behind_the_sample_do_not_hide_its_value() -> None:
    text = 'a{path="/x{id}",say="\\"}"} 5 # {trace_id="x"} 0.67\n'

    assert read_samples(text, ["a"]) == {"a": 5.0}
