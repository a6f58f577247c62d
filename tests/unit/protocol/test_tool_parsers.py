import json

import pytest

from headrace.protocol.deltas import Collected
from headrace.protocol.tool_parsers import (
    ToolCallParser,
    ToolFormat,
    format_of_template,
    hermes,
    json_format,
    llama3,
    mistral,
)

names = frozenset({"weather", "f"})


def parse(
    tool_format: ToolFormat, text: str, calls_max: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser(tool_format, names, calls_max=calls_max)
    collected = Collected()
    collected.add(parser.push(text))
    collected.add(parser.finish())
    return collected.content, [(call.name, call.arguments) for call in collected.calls]


tricky = '{"city": "Zü}r\\"ich \\\\", "n": [1, {}], "emoji": "🌊日本"}'


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (hermes, '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'),
        (hermes, '<tool_call>{"arguments": %s, "name": "weather"}</tool_call>'),
        (hermes, '\n\n<tool_call>{"id": "x", "name": "weather", "arguments": %s}'),
        (llama3, '{"name": "weather", "parameters": %s}'),
        (llama3, '<|python_tag|>{"type": "function", "name": "weather", "parameters": %s}'),
        (mistral, '[TOOL_CALLS] [{"name": "weather", "arguments": %s}]'),
        (mistral, "[TOOL_CALLS]weather[ARGS]%s"),
        (mistral, "[TOOL_CALLS]weather[CALL_ID]abc[ARGS]%s"),
        (mistral, "[TOOL_CALLS]weather%s"),
        (json_format, '{"name": "weather", "arguments": %s}'),
        (json_format, '```json\n[{"name": "weather", "arguments": %s}]\n```'),
    ],
)
def test_a_call_passes_its_arguments_byte_for_byte(tool_format: ToolFormat, text: str) -> None:
    content, calls = parse(tool_format, text % tricky)
    assert calls == [("weather", tricky)]
    assert content == ""


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (hermes, '<tool_call>{"name": "f"}</tool_call>'),
        (hermes, '<tool_call>{"name": "f", "arguments": null}</tool_call>'),
        (hermes, '<tool_call>{"name": "f", "arguments": ""}</tool_call>'),
        (llama3, '{"name": "f", "parameters": {}}'),
        (mistral, "[TOOL_CALLS]f{}"),
    ],
)
def test_no_arguments_are_an_empty_object(tool_format: ToolFormat, text: str) -> None:
    assert parse(tool_format, text) == ("", [("f", "{}")])


def test_arguments_in_a_string_are_taken_out_of_it() -> None:
    written = json.dumps({"name": "f", "arguments": json.dumps({"a": 1})})
    assert parse(hermes, f"<tool_call>{written}</tool_call>") == ("", [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            hermes,
            '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "weather"}</tool_call>',
        ),
        (llama3, '{"name": "f", "parameters": {}}; {"name": "weather", "parameters": {}}'),
        (mistral, '[TOOL_CALLS] [{"name": "f"}, {"name": "weather"}]'),
        (mistral, "[TOOL_CALLS]f{}[TOOL_CALLS]weather{}"),
        (json_format, '[{"name": "f"}, {"name": "weather"}]'),
    ],
)
def test_several_calls_keep_their_order(tool_format: ToolFormat, text: str) -> None:
    assert parse(tool_format, text) == ("", [("f", "{}"), ("weather", "{}")])


def test_content_before_a_call_stays_without_the_space_between() -> None:
    text = 'Let me see.\n\n<tool_call>{"name": "f"}</tool_call>'
    assert parse(hermes, text) == ("Let me see.", [("f", "{}")])


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (hermes, "plain text \n"),
        (hermes, "a < b, <tool_cal"),
        (hermes, "<tool_call>hello</tool_call>"),
        (hermes, '<tool_call>{"nom": "f"}</tool_call>'),
        (hermes, '<tool_call>{"name": 7}'),
        (hermes, '<tool_call>{"na'),
        (hermes, '{"name": "f"}'),
        (llama3, '{"name": "Bob", "age": 7}'),
        (llama3, "  {not json}"),
        (llama3, 'text, then {"name": "f", "parameters": {}}'),
        (mistral, "[1, 2] is a list [TOOL_"),
        (json_format, "```python\nprint()\n```"),
        (json_format, "[" * 600),
        (hermes, "<tool_call>" + " " * 600 + "x"),
        (mistral, "[TOOL_CALLS]" + "x" * 600),
    ],
)
def test_what_is_no_call_is_content_in_full(tool_format: ToolFormat, text: str) -> None:
    assert parse(tool_format, text) == (text, [])


def test_an_unknown_name_counts_only_where_the_model_says_that_it_calls() -> None:
    assert parse(hermes, '<tool_call>{"name": "new"}</tool_call>') == ("", [("new", "{}")])
    assert parse(json_format, '{"name": "new"}') == ('{"name": "new"}', [])


def test_a_call_that_was_cut_off_keeps_what_there_is() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": [1, "b'
    assert parse(hermes, text) == ("", [("f", '{"a": [1, "b')])


def test_after_the_calls_that_are_allowed_nothing_counts() -> None:
    parser = ToolCallParser(hermes, names, calls_max=1)
    parser.push('<tool_call>{"name": "f", "arguments": {"a": ')
    assert not parser.is_complete
    parser.push("1}}")
    assert parser.is_complete
    assert parser.push('</tool_call> text <tool_call>{"name": "f"}') == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("source", "tool_format"),
    [
        ("{{ '<tool_call>' }}", hermes),
        ("{{ '[TOOL_CALLS]' }}", mistral),
        ("{{ '<|python_tag|>' }}", llama3),
        ("{{ messages }}", json_format),
    ],
)
def test_the_template_tells_the_format(source: str, tool_format: ToolFormat) -> None:
    assert format_of_template(source) is tool_format
