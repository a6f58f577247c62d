"""What the grammar of a forced call lets through, the parser of the same dialect reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.forced_calls import forced_calls
from headrace.engine_server.grammars import GrammarCompiler
from headrace.protocol.deltas import Collected
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.requests import ChatRequest
from headrace.protocol.tool_parsers import tool_formats

vocab_size = 258  # of the model of bytes
schema = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def request(**fields: Any) -> ChatRequest:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name in ("f", "g")
    ]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": tools,
        "tool_choice": "required",
        **fields,
    }
    return parse_chat_request(json.dumps(body).encode())


def dialect(name: str, thinks: bool = False) -> Dialect:
    reasoning = reasoning_formats["think"] if thinks else None
    return Dialect(tool_formats[name], reasoning, template_has_tools=True, shown_ids=frozenset())


def lets(
    compiler: GrammarCompiler, asked: ChatRequest, spoken: Dialect, text: str, tail: str = ""
) -> bool:
    """Whether the grammar lets this whole text through, a byte at a time."""
    grammar = forced_calls(asked, spoken, tail)
    assert grammar is not None
    constraint = compiler.compile(grammar)
    written = list(text.encode())
    for count, byte in enumerate(written):
        mask = constraint.mask_after(written[:count])
        if not mask[byte // 32] >> byte % 32 & 1:
            return False
    return True


@pytest.fixture(scope="module")
def compiler(byte_model: Path) -> GrammarCompiler:
    return GrammarCompiler(byte_model, vocab_size)


one_call = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"a": 1}}',
    "mistral": '[{"name": "f", "arguments": {"a": 1}}]',
    "json": '[{"name": "f", "arguments": {"a": 1}}]',
}
two_calls = {
    "hermes": one_call["hermes"] + "\n" + one_call["hermes"].replace('"f"', '"g"'),
    "llama3": one_call["llama3"] + "; " + one_call["llama3"].replace('"f"', '"g"'),
    "mistral": '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"a": 1}}]',
    "json": '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"a": 1}}]',
}


@pytest.mark.parametrize("name", tool_formats)
def test_calls_in_the_models_own_format_pass_and_are_read(
    compiler: GrammarCompiler, name: str
) -> None:
    spoken, asked = dialect(name), request()
    for text, names in ((one_call[name], ["f"]), (two_calls[name], ["f", "g"])):
        assert lets(compiler, asked, spoken, text)
        parser = spoken.parser(asked, "")
        collected = Collected()
        collected.add(parser.push(text))
        collected.add(parser.finish())
        assert [call.name for call in collected.calls] == names
        assert all(json.loads(call.arguments) == {"a": 1} for call in collected.calls)
        assert collected.content == ""


@pytest.mark.parametrize("name", tool_formats)
def test_nothing_but_calls_by_the_schema_passes(compiler: GrammarCompiler, name: str) -> None:
    spoken, asked = dialect(name), request()
    assert not lets(compiler, asked, spoken, "Sure!")
    assert not lets(compiler, asked, spoken, one_call[name].replace('"f"', '"h"'))
    assert not lets(compiler, asked, spoken, one_call[name].replace("1", '"one"'))


@pytest.mark.parametrize("name", tool_formats)
def test_one_call_is_the_most_where_only_one_is_allowed(
    compiler: GrammarCompiler, name: str
) -> None:
    spoken = dialect(name)
    alone = request(parallel_tool_calls=False)
    assert lets(compiler, alone, spoken, one_call[name])
    assert not lets(compiler, alone, spoken, two_calls[name])
    named = request(tool_choice={"type": "function", "function": {"name": "g"}})
    assert not lets(compiler, named, spoken, one_call[name])
    assert lets(compiler, named, spoken, one_call[name].replace('"f"', '"g"'))


def test_a_thought_that_has_begun_comes_before_the_call(compiler: GrammarCompiler) -> None:
    spoken = dialect("hermes", thinks=True)
    text = "Let me <b>see.\n</think>" + one_call["hermes"]
    assert lets(compiler, request(), spoken, text, "assistant\n<think>\n")
    assert not lets(compiler, request(), spoken, text, "assistant\n")


def test_a_free_choice_has_no_grammar() -> None:
    assert forced_calls(request(tool_choice="auto"), dialect("hermes"), "") is None


tree = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "below": {"type": "array", "items": {"$ref": "%s"}},
    },
    "required": ["value", "below"],
    "additionalProperties": False,
}
recursive_schemas = {
    "to a definition": {
        "$defs": {"tree": json.loads(json.dumps(tree).replace("%s", "#/$defs/tree"))},
        "$ref": "#/$defs/tree",
    },
    "to the root": json.loads(json.dumps(tree).replace("%s", "#")),
}


def test_a_schema_that_always_contains_itself_is_refused() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": endless}}
    with pytest.raises(InvalidRequest, match="'f' always contain themselves"):
        forced_calls(request(tools=[tool]), dialect("json"), "")


@pytest.mark.parametrize("kind", recursive_schemas)
def test_a_schema_that_contains_itself_holds_at_every_depth(
    compiler: GrammarCompiler, kind: str
) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": recursive_schemas[kind]},
    }
    asked, spoken = request(tools=[tool]), dialect("json")
    inner: dict[str, Any] = {"value": 7, "below": []}
    for _ in range(4):
        inner = {"value": 1, "below": [inner]}
    text = json.dumps([{"name": "f", "arguments": inner}])
    assert lets(compiler, asked, spoken, text)
    assert not lets(compiler, asked, spoken, text.replace("7", '"7"'))
