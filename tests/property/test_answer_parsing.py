"""A streamed answer is the whole answer, whatever the model writes and wherever it is cut."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.answer_parser import AnswerParser
from headrace.protocol.deltas import Collected
from headrace.protocol.reasoning import ReasoningSplitter, reasoning_formats
from headrace.protocol.tool_parsers import ToolCallParser, ToolFormat, tool_formats
from headrace.tokenizer.stop_matcher import StopMatcher

names = frozenset({"f", "weather"})
marks = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```json",
    "<|python_tag|>", '{"name": "f", "arguments": ', '{"name": "weather"}', '{"a": "}"}', "{", "}",
    "[", "]", ";", "f{", '"', "\\", "\n", " ", "STOP", "ST",
]  # fmt: skip
texts = st.lists(
    st.sampled_from(marks) | st.text(st.sampled_from("a<é日🌊👩‍👩‍👧"), max_size=4), max_size=14
).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=4)


def parser_of(tool_format: ToolFormat, prompt_tail: str, calls_max: int | None) -> AnswerParser:
    return AnswerParser(
        ReasoningSplitter(reasoning_formats["think"], prompt_tail),
        ToolCallParser(tool_format, names, calls_max=calls_max),
    )


def collect(parser: AnswerParser, pieces: list[str]) -> tuple[Collected, str]:
    collected = Collected()
    matcher = StopMatcher(["STOP"])
    for piece in pieces:
        collected.add(parser.push(matcher.push(piece).text_to_emit))
    collected.add(parser.push(matcher.finish()))
    collected.add(parser.finish())
    return collected, parser.finish_reason("stop")


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=150, deadline=None)
@given(
    tool_format=st.sampled_from(list(tool_formats.values())),
    text=texts,
    places=st.lists(st.integers(0, 80), max_size=12),
    prompt_tail=st.sampled_from(["assistant\n", "<think>\n"]),
    calls_max=st.sampled_from([None, 1]),
)
def test_any_cutting_of_any_text_gives_the_same_answer(
    tool_format: ToolFormat,
    text: str,
    places: list[int],
    prompt_tail: str,
    calls_max: int | None,
) -> None:
    whole = collect(parser_of(tool_format, prompt_tail, calls_max), [text])
    assert collect(parser_of(tool_format, prompt_tail, calls_max), cut(text, places)) == whole
    assert collect(parser_of(tool_format, prompt_tail, calls_max), list(text)) == whole


def written(tool_format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], indent: int) -> str:
    """Calls as a model of this format writes them."""
    key = "parameters" if tool_format.name == "llama3" else "arguments"
    bodies = [
        json.dumps({"name": name, key: given}, ensure_ascii=indent == 0, indent=indent or None)
        for name, given in calls
    ]
    if tool_format.name == "hermes":
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    if tool_format.name == "llama3":
        return "; ".join(bodies)
    opening = "[TOOL_CALLS] " if tool_format.name == "mistral" else ""
    return opening + "[" + ", ".join(bodies) + "]"


@settings(max_examples=100, deadline=None)
@given(
    tool_format=st.sampled_from(list(tool_formats.values())),
    calls=st.lists(st.tuples(st.sampled_from(sorted(names)), arguments), min_size=1, max_size=3),
    indent=st.sampled_from([0, 2]),
    places=st.lists(st.integers(0, 200), max_size=12),
)
def test_every_call_that_was_written_is_read(
    tool_format: ToolFormat,
    calls: list[tuple[str, dict[str, Any]]],
    indent: int,
    places: list[int],
) -> None:
    text = "<think>hm</think>" + written(tool_format, calls, indent)
    parser = AnswerParser(
        ReasoningSplitter(reasoning_formats["think"], ""),
        ToolCallParser(tool_format, names, calls_max=None),
    )
    collected = Collected()
    for piece in cut(text, places):
        collected.add(parser.push(piece))
    collected.add(parser.finish())
    assert [(call.name, json.loads(call.arguments)) for call in collected.calls] == calls
    assert collected.content == ""
    assert collected.reasoning == "hm"
