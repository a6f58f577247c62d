"""Structural tags, as what the grammar takes: over a vocabulary of single bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.engine_server.answer_shape import answer_grammar
from headrace.engine_server.grammars import GrammarCompiler
from headrace.engine_server.messages import Grammar
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.structural_tags import pattern_length_max

vocab_size = 258
end = 256
number = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
legacy = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=get>", "schema": {**number, "required": ["n"]}, "end": "</f>"},
        {"begin": "<f=put>", "schema": {"type": "string"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def tag(begin: str, content: dict[str, Any], closing: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": closing}


digits = tag("<a>", {"type": "regex", "pattern": "[0-9]+"}, "</a>")
letters = tag("<b>", {"type": "regex", "pattern": "[a-z/]+"}, "</b>")


def tree(shape: str, **fields: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": shape, **fields}}


def grammar_of(response_format: object, **fields: object) -> Grammar:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "response_format": response_format,
        **fields,
    }
    grammar = answer_grammar(parse_chat_request(json.dumps(body).encode()), None)
    assert grammar is not None
    return grammar


@pytest.fixture
def compiler(byte_model: Path) -> GrammarCompiler:
    return GrammarCompiler(byte_model, vocab_size)


def takes(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """Whether an answer can be exactly this text."""
    constraint = compiler.compile(grammar)
    data = text.encode()
    for count in range(len(data) + 1):
        words = constraint.mask_after(data[:count])
        wanted = data[count] if count < len(data) else end
        if not words[wanted // 32] >> (wanted % 32) & 1:
            return False
    return True


triggered: dict[str, Any] = {"triggers": ["<a", "<b"], "tags": [digits, letters]}


@pytest.mark.parametrize(
    ("response_format", "right", "wrong"),
    [
        (
            legacy,
            ["", "hello", 'x <f=get>{"n":1}</f> y <f=put>"s"</f>', "a < b"],
            ["<f=other>", '<f=get>{"n":"1"}</f>', "<f=get>{}</f>", "<f="],
        ),
        (
            tree("triggered_tags", **triggered),
            ["", "x<a>1</a>y<b>q</b>z"],
            ["<a>q</a>", "<aa", "<a>1"],
        ),
        (
            tree("triggered_tags", at_least_one=True, **triggered),
            ["<a>1</a>", "x<a>1</a>"],
            ["", "x"],
        ),
        (
            tree("triggered_tags", stop_after_first=True, **triggered),
            ["", "x", "x<a>1</a>"],
            ["<a>1</a>x"],
        ),
        (
            tree("tags_with_separator", tags=[digits, letters], separator=", "),
            ["", "<a>1</a>", "<a>1</a>, <b>q</b>"],
            ["x", "<a>1</a><b>q</b>"],
        ),
        (
            tree(
                "tags_with_separator",
                tags=[digits],
                separator="",
                at_least_one=True,
                stop_after_first=True,
            ),
            ["<a>1</a>"],
            ["", "<a>1</a><a>1</a>"],
        ),
        (
            tree(
                "sequence",
                elements=[
                    tag("<think>", {"type": "any_text"}, "</think>"),
                    {"type": "const_string", "value": "\n"},
                    {"type": "json_schema", "json_schema": number},
                ],
            ),
            ['<think>so < that</think>\n{"n":1}', "<think></think>\n{}"],
            ["<think></think>{}", "{}", "<think>\n{}"],
        ),
        (
            tree("sequence", elements=[{"type": "any_text"}, digits]),
            ["<a>1</a>", "one <b <a>1</a>"],
            ["one", "<a>1</a>x"],
        ),
        (
            tree("or", elements=[digits, {"type": "const_string", "value": "none/é"}]),
            ["<a>1</a>", "none/é"],
            ["", "nope"],
        ),
        (
            tree("grammar", grammar='start: "x" more\nmore: "y"+'),
            ["xy", "xyy"],
            ["x"],
        ),
    ],
)
def test_an_answer_is_free_but_for_its_tags(
    compiler: GrammarCompiler, response_format: object, right: list[str], wrong: list[str]
) -> None:
    grammar = grammar_of(response_format)
    assert [text for text in right if not takes(compiler, grammar, text)] == []
    assert [text for text in wrong if takes(compiler, grammar, text)] == []


def test_vllms_own_field_takes_the_same_as_text(compiler: GrammarCompiler) -> None:
    text = json.dumps(legacy)
    grammar = grammar_of(None, structured_outputs={"structural_tag": text})
    assert takes(compiler, grammar, 'x<f=get>{"n":1}</f>')
    assert grammar.param == "structured_outputs.structural_tag"


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ({"type": "structural_tag"}, "response_format.format"),
        ({"type": "structural_tag", "triggers": ["<"]}, "response_format.format"),
        ({**legacy, "triggers": ["["]}, "response_format"),
        (tree("triggered_tags", triggers=[], tags=[digits]), "response_format.format.triggers"),
        (tree("qwen_xml_parameter", json_schema={}), "response_format.format.type"),
        (tree("const_string", value="x", colour="red"), "response_format.format.colour"),
        (
            tree("sequence", elements=[tree("any_text")["format"], tree("any_text")["format"]]),
            "response_format.format",
        ),
        (
            tree("tag", begin="<", content={"type": "triggered_tags", **triggered}, end=">"),
            "response_format.format",
        ),
        (
            {**legacy, "structures": [{"begin": "<f=", "schema": "{", "end": ""}]},
            "response_format.structures[0].schema",
        ),
        (tree("regex", pattern="a" * (pattern_length_max + 1)), "response_format.format.pattern"),
    ],
)
def test_a_wrong_structural_tag_is_refused_by_name(response_format: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(response_format)
    assert refused.value.param == param


@pytest.mark.parametrize("text", ["{", '{"type": "structural_tag"}', '{"type": "colour"}'])
def test_a_wrong_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="structural_tag") as refused:
        grammar_of(None, structured_outputs={"structural_tag": text})
    assert "structured_outputs.structural_tag" in str(refused.value.param)
