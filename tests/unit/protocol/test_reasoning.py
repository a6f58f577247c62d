import pytest

from headrace.protocol.answer_parser import AnswerParser
from headrace.protocol.deltas import Collected
from headrace.protocol.reasoning import (
    ReasoningSplitter,
    reasoning_formats,
    reasoning_of_template,
)
from headrace.protocol.tool_parsers import ToolCallParser, hermes

think = reasoning_formats["think"]


def parse(text: str, prompt_tail: str = "assistant\n") -> tuple[str, str]:
    splitter = ReasoningSplitter(think, prompt_tail)
    collected = Collected()
    collected.add(splitter.push(text))
    collected.add(splitter.finish())
    return collected.reasoning, collected.content


@pytest.mark.parametrize(
    ("text", "prompt_tail", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", "assistant\n", "hm", "yes"),
        ("hm\n\nwell\n</think>\n\nyes\n", "assistant\n<think>\n", "hm\n\nwell", "yes\n"),
        ("yes", "<think>\n\n</think>\n\n", "", "yes"),
        ("  yes", "assistant\n", "", "  yes"),
        ("what <think> means", "assistant\n", "", "what <think> means"),
        ("still thinking </thi", "<think>", "still thinking </thi", ""),
        ("<thi", "assistant\n", "", "<thi"),
        ("<think></think>", "assistant\n", "", ""),
        ("hm</think>yes </think> no", "<think>", "hm", "yes </think> no"),
    ],
)
def test_thoughts_are_told_from_content(
    text: str, prompt_tail: str, reasoning: str, content: str
) -> None:
    assert parse(text, prompt_tail) == (reasoning, content)


def test_a_call_inside_a_thought_is_none() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    parser = AnswerParser(
        ReasoningSplitter(think, "<think>"), ToolCallParser(hermes, {"f"}, calls_max=None)
    )
    collected = Collected()
    collected.add(parser.push(f"{call}</think>{call}"))
    collected.add(parser.finish())
    assert collected.reasoning == call
    assert [call.name for call in collected.calls] == ["f"]
    assert parser.finish_reason("stop") == "tool_calls"
    assert parser.finish_reason("length") == "length"


def test_an_answer_without_parsers_is_content() -> None:
    parser = AnswerParser(None, None)
    collected = Collected()
    collected.add(parser.push("<think>a</think>"))
    collected.add(parser.push(""))
    collected.add(parser.finish())
    assert collected.content == "<think>a</think>"
    assert parser.finish_reason("stop") == "stop"


def test_the_template_tells_the_marks() -> None:
    assert reasoning_of_template("{{ '</think>' }}") is think
    assert reasoning_of_template("{{ '[THINK]' }}") is reasoning_formats["mistral"]
    assert reasoning_of_template("{{ messages }}") is None
