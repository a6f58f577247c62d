import json
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest, RateLimited
from headrace.protocol.anthropic import chat_of_messages, parse_messages_request
from headrace.protocol.anthropic_answers import MessagesTranslator
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.sse import SseDecoder
from headrace.protocol.translation import TranslatedAnswer

hello = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": hello, **fields}).encode()


def chat(**fields: Any) -> dict[str, Any]:
    made = chat_of_messages(parse_messages_request(body(**fields)))
    parse_chat_request(made)  # it is one that every engine of ours takes
    fields_made: dict[str, Any] = json.loads(made)
    return fields_made


def test_sampling_and_system_have_their_own_places() -> None:
    made = chat(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        temperature=0.5,
        top_k=3,
        stop_sequences=["x"],
        metadata={"user_id": "u"},
    )
    assert made["messages"] == [{"role": "system", "content": "Be brief."}, *hello]
    assert (made["max_tokens"], made["temperature"], made["top_k"]) == (9, 0.5, 3)
    assert (made["stop"], made["user"]) == (["x"], "u")


def test_calls_and_their_results_become_messages_in_order() -> None:
    turns = [
        *hello,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    _, said, result, asked = chat(messages=turns)["messages"]
    assert said["reasoning_content"] == "hm"
    assert said["content"] == "Let me see."
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert result == {"role": "tool", "tool_call_id": "t1", "content": "42"}
    assert asked == {"role": "user", "content": "And?"}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices_of_tools_keep_their_meaning(choice: dict[str, Any], wanted: object) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    made = chat(tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
    assert made["tool_choice"] == wanted
    assert made["parallel_tool_calls"] is False
    assert made["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_thoughts_are_left_out_unless_they_are_asked_for() -> None:
    assert chat()["include_reasoning"] is False
    assert chat(thinking={"type": "enabled", "budget_tokens": 2000})["include_reasoning"] is True
    assert chat(thinking={"type": "enabled", "budget_tokens": 2000})["reasoning_budget"] == 2000
    assert "reasoning_budget" not in chat(thinking={"type": "adaptive"})
    assert chat(thinking={"type": "disabled"})["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_messages_request(body(**fields))
    assert refused.value.param == param


def chunk(delta: dict[str, Any], **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


usage = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
}
stream = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "h", "reasoning": "h"}),
    chunk({"reasoning_content": "m"}),
    chunk({"content": "Let me "}),
    chunk({"content": "see."}),
    chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk({}, finish_reason="tool_calls"),
    b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]
whole = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "content": "Let me see.",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    }
                ],
            },
        }
    ],
    "usage": usage,
}


def translated(pieces: list[bytes], status: int = 200) -> bytes:
    answer = TranslatedAnswer(MessagesTranslator("msg_1", "m"))
    is_stream = pieces[0].startswith(b"data:")
    answer.begin(status, b"text/event-stream" if is_stream else b"application/json")
    sent = [answer.feed(piece, last=False) for piece in pieces]
    return b"".join([*sent, answer.feed(b"", last=True)])


def test_a_whole_answer_is_a_message() -> None:
    message = json.loads(translated([json.dumps(whole).encode()]))
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["input_tokens"] == 5
    assert message["usage"]["cache_read_input_tokens"] == 4
    assert message["usage"]["output_tokens"] == 5


def test_a_stream_has_each_block_whole_and_one_end() -> None:
    events = SseDecoder().feed(translated(stream))
    values = [json.loads(event.data) for event in events]
    assert [event.name for event in events] == [value["type"] for value in values]
    kinds = [value["type"] for value in values]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    texts: dict[int, str] = {}
    for value in values:
        if value["type"] == "content_block_delta":
            (piece,) = [v for k, v in value["delta"].items() if k != "type"]
            texts[value["index"]] = texts.get(value["index"], "") + piece
    assert texts == {0: "hm", 1: "Let me see.", 2: '{"a":1}'}
    assert values[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert values[-2]["usage"]["output_tokens"] == 5


def test_errors_have_anthropics_shape_before_and_inside_a_stream() -> None:
    error = error_body(RateLimited("slow down", limit=3))
    refused = json.loads(translated([error], 429))
    assert refused == {
        "type": "error",
        "error": {
            "type": "rate_limit_error",
            "message": "slow down",
            "param": None,
            "code": "rate_limit_exceeded",
            "limit": 3,
        },
    }
    broken = SseDecoder().feed(translated([*stream[:2], b"data: " + error + b"\n\n", *stream[3:]]))
    assert broken[-1].name == "error"
