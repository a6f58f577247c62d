from typing import Any

import pytest

from headrace.base.errors import ConfigurationError, InvalidRequest
from headrace.engine_server.dialect import ShownTokens, check_parsers, prompt_tail, read_dialect
from headrace.engine_server.messages import ThoughtBudget
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.tool_parsers import hermes, llama3, mistral

# A vocabulary of a few tokens; what begins with [ is a control token, which answers do not show.
texts = ["[TOOL_CALLS]", "[THINK]", "[/THINK]", "<think>", "hello", "\n"]


class Template:
    def __init__(self, source: str) -> None:
        self.source = source


class FewTokens:
    def __init__(self, source: str) -> None:
        self.chat_template = Template(source)

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        assert parse_special
        return [texts.index(text)] if text in texts else [4, 4]

    def token_bytes(self, token_id: int) -> bytes:
        return texts[token_id].encode()

    def text_bytes(self, token_id: int) -> bytes:
        return b"" if texts[token_id].startswith("[") else self.token_bytes(token_id)


def few_tokens(source: str) -> Any:
    return FewTokens(source)


def test_the_template_tells_how_the_model_writes() -> None:
    dialect = read_dialect(few_tokens("{% if tools %}<tool_call>{% endif %}</think>"))
    assert dialect.tool_format is hermes
    assert dialect.reasoning is reasoning_formats["think"]
    assert dialect.template_has_tools
    assert dialect.shown_ids == frozenset()


def test_marks_that_are_control_tokens_are_shown_to_the_parsers() -> None:
    tokenizer = few_tokens("[TOOL_CALLS] [THINK]")
    dialect = read_dialect(tokenizer)
    assert dialect.tool_format is mistral
    assert dialect.shown_ids == {0, 1, 2}
    shown = ShownTokens(tokenizer, dialect.shown_ids)
    assert shown.text_bytes(0) == b"[TOOL_CALLS]"
    assert ShownTokens(tokenizer, frozenset()).text_bytes(0) == b""
    assert ShownTokens(tokenizer, None).text_bytes(2) == b"[/THINK]"


def test_the_operator_comes_before_the_template() -> None:
    tokenizer = few_tokens("<tool_call></think>")
    dialect = read_dialect(tokenizer, "llama3", "none")
    assert dialect.tool_format is llama3
    assert dialect.reasoning is None
    assert read_dialect(tokenizer, "none").tool_format is None


def test_a_parser_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match="hermes, llama3, mistral, json"):
        check_parsers("pythonic", None)
    with pytest.raises(ConfigurationError, match="think, mistral"):
        check_parsers(None, "loud")
    check_parsers("hermes", "none")


def test_the_prompts_tail_spells_control_tokens_out() -> None:
    assert prompt_tail(few_tokens(""), [4, 0, 5]) == "hello[TOOL_CALLS]\n"


def test_only_chats_with_tools_are_searched_for_calls() -> None:
    dialect = read_dialect(few_tokens("<tool_call>"))
    text = '<tool_call>{"name": "f"}</tool_call>'
    tools = b'"tools": [{"type": "function", "function": {"name": "f"}}]'
    chat = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]'
    for body, reason in (
        (chat + b"}", "stop"),
        (chat + b", " + tools + b"}", "tool_calls"),
        (chat + b", " + tools + b', "tool_choice": "none"}', "stop"),
    ):
        parser = dialect.parser(parse_chat_request(body), "")
        parser.push(text)
        assert parser.finish_reason("stop") == reason
    completion = dialect.parser(parse_completion_request(b'{"model": "m", "prompt": "x"}'), "")
    completion.push(text)
    assert completion.finish_reason("stop") == "stop"


def test_a_budget_names_the_tokens_around_a_thought() -> None:
    tokenizer = few_tokens("[THINK]")
    dialect = read_dialect(tokenizer)
    assert dialect.thought_budget(5, tokenizer, "Hello\n") == ThoughtBudget(5, 2, 1)
    assert dialect.thought_budget(5, tokenizer, "Hello[THINK]\n") == ThoughtBudget(5, 2, None)


def test_a_model_that_does_not_think_keeps_any_budget() -> None:
    tokenizer = few_tokens("")
    assert read_dialect(tokenizer).thought_budget(5, tokenizer, "") is None


def test_a_budget_is_refused_where_the_end_of_a_thought_cannot_be_forced() -> None:
    tokenizer = few_tokens("</think>")
    with pytest.raises(InvalidRequest, match="several tokens") as refused:
        read_dialect(tokenizer).thought_budget(5, tokenizer, "")
    assert refused.value.param == "reasoning_budget"
