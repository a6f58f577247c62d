import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import InvalidRequest
from headrace.engine_server import grammars
from headrace.engine_server.grammars import GrammarCompiler, grammar_characters_max
from headrace.engine_server.messages import Grammar

vocab_size = 260  # bytes, the end, two spaces, and a token of the model that the tokenizer lacks
end = 256


@pytest.fixture
def compiler(byte_model: Path) -> GrammarCompiler:
    return GrammarCompiler(byte_model, vocab_size)


def allowed(words: NDArray[np.uint32]) -> set[int]:
    return {i for i in range(len(words) * 32) if words[i // 32] >> np.uint32(i % 32) & 1}


def regex(text: str) -> Grammar:
    return Grammar("regex", text, "guided_regex")


def test_the_mask_follows_the_output_to_its_end(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(regex("a[bc]"))
    assert allowed(constraint.mask_after([])) == {ord("a")}
    assert allowed(constraint.mask_after(b"a")) == {ord("b"), ord("c")}
    assert allowed(constraint.mask_after(b"a")) == {ord("b"), ord("c")}
    assert allowed(constraint.mask_after(b"ac")) == {end}


def test_a_model_may_have_many_more_tokens_than_its_tokenizer(byte_model: Path) -> None:
    constraint = GrammarCompiler(byte_model, 999).compile(regex("a[bc]"))
    assert allowed(constraint.mask_after([])) == {ord("a")}
    assert allowed(constraint.mask_after(b"ac")) == {end}


def test_two_requests_with_one_grammar_do_not_disturb_each_other(compiler: GrammarCompiler) -> None:
    first, second = compiler.compile(regex("ab")), compiler.compile(regex("ab"))
    first.mask_after(b"a")
    assert allowed(second.mask_after([])) == {ord("a")}


@pytest.mark.parametrize(
    "grammar",
    [
        regex("(a"),
        Grammar("lark", "start: nowhere", "guided_grammar"),
        Grammar("json_schema", '{"type": "nothing"}', "guided_json"),
        Grammar("json_schema", "{", "guided_json"),
        regex("a" * (grammar_characters_max + 1)),
    ],
)
def test_a_wrong_or_large_grammar_is_refused_by_name(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(grammar.param) + "|characters") as refused:
        compiler.compile(grammar)
    assert refused.value.param == grammar.param


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"$ref": "#"}', "guided_json"),
        Grammar("json_schema", '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}', "guided_json"),
        Grammar("lark", "start: start start", "guided_grammar"),
    ],
)
def test_what_refers_to_itself_for_ever_is_refused_before_anything_is_generated(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    with pytest.raises(InvalidRequest, match="refer to itself"):
        compiler.compile(grammar)


def test_a_refusal_says_the_whole_reason_in_one_line(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequest, match="unclosed group") as refused:
        compiler.compile(regex("(abc"))
    assert "\n" not in refused.value.message


def test_a_grammar_that_runs_out_of_fuel_allows_nothing(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "step_lexer_fuel", 1)
    schema = '{"properties": {"a": {"type": "string", "pattern": "^(a|b)*c{5,50}$"}}}'
    constraint = compiler.compile(Grammar("json_schema", schema, "guided_json"))
    masks = [allowed(constraint.mask_after(b'{"a": "'[:count])) for count in range(7)]
    assert masks[-1] == set()
