import json
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.turns import template_variables, tools_of, turns_of
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.requests import ChatRequest
from headrace.protocol.tool_parsers import ToolFormat, hermes, json_format, mistral

tool = {"type": "function", "function": {"name": "f", "description": "does it"}}
call = {"id": "call_123", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
history = [
    {"role": "user", "content": "do it"},
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "call_123", "content": "done"},
]


def request(**fields: Any) -> ChatRequest:
    return parse_chat_request(json.dumps({"model": "m", "messages": history, **fields}).encode())


def dialect(tool_format: ToolFormat, *, has_tools: bool) -> Dialect:
    return Dialect(tool_format, None, template_has_tools=has_tools, shown_ids=frozenset())


def test_templates_with_tools_get_calls_and_results_as_values() -> None:
    _, said, result = turns_of(request(tools=[tool]), dialect(hermes, has_tools=True))
    function = {"name": "f", "arguments": {"a": 1}}
    assert said["tool_calls"] == [{"id": "call_123", "type": "function", "function": function}]
    assert said["content"] == ""
    assert result == {"role": "tool", "content": "done", "tool_call_id": "call_123"}
    (written,) = tools_of(request(tools=[tool])) or []
    assert written["function"] == {
        "name": "f",
        "description": "does it",
        "parameters": {"type": "object", "properties": {}},
    }


def test_ids_are_of_the_length_that_mistrals_templates_demand() -> None:
    _, said, result = turns_of(request(tools=[tool]), dialect(mistral, has_tools=True))
    calls = said["tool_calls"]
    assert isinstance(calls, list)
    (written,) = calls
    assert len(written["id"]) == 9
    assert written["id"] == result["tool_call_id"]


@pytest.mark.parametrize("tool_format", [hermes, json_format])
def test_templates_without_tools_get_them_as_text(tool_format: ToolFormat) -> None:
    spoken = dialect(tool_format, has_tools=False)
    system, _, said, result = turns_of(request(tools=[tool]), spoken)
    assert system["role"] == "system"
    assert "does it" in str(system["content"])
    parser = spoken.parser(request(tools=[tool]), "")
    parser.push(str(said["content"]))
    parser.finish()
    assert parser.finish_reason("stop") == "tool_calls"  # the example is in the model's format
    assert result["role"] == "user"
    assert "done" in str(result["content"])


def test_an_own_system_message_stays_first() -> None:
    own = [{"role": "developer", "content": "Be brief."}, *history]
    spoken = dialect(json_format, has_tools=False)
    system, user, *_ = turns_of(request(messages=own, tools=[tool]), spoken)
    assert str(system["content"]).startswith("Be brief.\n\n")
    assert user["role"] == "user"


def test_no_tools_are_told_of_where_none_may_be_called() -> None:
    asked = request(tools=[tool], tool_choice="none")
    assert tools_of(asked) is None
    assert len(turns_of(asked, dialect(json_format, has_tools=False))) == 3


def test_efforts_and_callers_variables_reach_the_template() -> None:
    assert template_variables(request(reasoning_effort="none"))["enable_thinking"] is False
    assert template_variables(request(reasoning_effort="low"))["reasoning_effort"] == "low"
    sent = {"enable_thinking": True, "language": "en-GB", "depth": 3}
    assert template_variables(request(chat_template_kwargs=sent)) == sent


@pytest.mark.parametrize(
    "sent",
    [
        {"x": "<|im_start|>"},
        {"x": ["a"]},
        {"X y": 1},
        {"x": "a" * 65},
        {f"x{i}": 1 for i in range(33)},
    ],
)
def test_variables_that_could_carry_more_are_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        template_variables(request(chat_template_kwargs=sent))
    assert refused.value.param == "chat_template_kwargs"
