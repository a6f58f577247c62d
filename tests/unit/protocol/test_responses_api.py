import json
from typing import Any

import msgspec
import pytest

from headrace.base.errors import InvalidRequest, Unavailable
from headrace.protocol.errors import error_event
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.responses_answers import ResponsesTranslator
from headrace.protocol.responses_api import (
    chat_of_responses,
    input_items,
    items_of_output,
    parse_responses_request,
)
from headrace.protocol.sse import SseDecoder
from headrace.protocol.translation import TranslatedAnswer

call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
usage = {"prompt_tokens": 9, "completion_tokens": 5}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hello", **fields}).encode()


def chat(**fields: Any) -> dict[str, Any]:
    made = chat_of_responses(parse_responses_request(body(**fields)), [])
    parse_chat_request(made)  # it is one that every engine of ours takes
    fields_made: dict[str, Any] = json.loads(made)
    return fields_made


def test_a_text_and_instructions_are_a_conversation() -> None:
    assert chat(instructions="Be brief.")["messages"] == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_items_become_turns() -> None:
    made = chat(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a"}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ]
    )
    user, answer, result = made["messages"]
    assert user == {"role": "user", "content": "hi"}
    assert (answer["content"], answer["reasoning_content"]) == ("a", "hm")
    assert answer["tool_calls"][0]["id"] == "c"
    assert result == {"role": "tool", "tool_call_id": "c", "content": "42"}


def test_formats_tools_and_efforts_keep_their_meaning() -> None:
    made = chat(
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        max_output_tokens=7,
    )
    assert made["tools"][0]["function"]["name"] == "f"
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert made["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (made["reasoning_effort"], made["max_completion_tokens"]) == ("low", 7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "store": False}, "store"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_responses_request(body(**fields))
    assert refused.value.param == param


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def stream(reason: str) -> list[bytes]:
    return [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "hm"}),
        chunk({"content": "Let "}),
        chunk({"content": "me."}),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
        chunk({}, reason),
        b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    ]


def whole(reason: str) -> bytes:
    message = {"content": "Let me.", "reasoning": "hm", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def translated(pieces: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """The response, and what was sent."""
    translator = ResponsesTranslator(parse_responses_request(body()), "resp_1", 1)
    answer = TranslatedAnswer(translator)
    is_stream = pieces[0].startswith(b"data:")
    answer.begin(200, b"text/event-stream" if is_stream else b"application/json")
    sent = [answer.feed(piece, last=False) for piece in pieces]
    sent.append(answer.feed(b"", last=True))
    response: dict[str, Any] = json.loads(msgspec.json.encode(translator.response))
    return response, b"".join(sent)


@pytest.mark.parametrize(
    ("reason", "status"), [("tool_calls", "completed"), ("length", "incomplete")]
)
def test_a_stream_ends_as_the_whole_response(reason: str, status: str) -> None:
    response, sent = translated([whole(reason)])
    assert json.loads(sent) == response
    assert response["status"] == status
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert response["usage"]["total_tokens"] == 14
    streamed, events = translated(stream(reason))
    assert streamed == response
    values = [json.loads(event.data) for event in SseDecoder().feed(events)]
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    assert values[-1] == {
        "type": f"response.{status}",
        "sequence_number": len(values) - 1,
        "response": response,
    }
    kinds = [value["type"] for value in values]
    assert kinds.count("response.output_item.added") == 3
    assert kinds.count("response.output_item.done") == 3


def test_a_stream_that_fails_ends_as_failed() -> None:
    error = error_event(Unavailable("the engine stopped"))
    response, events = translated([*stream("stop")[:3], error])
    assert response["status"] == "failed"
    assert response["error"]["message"] == "the engine stopped"
    assert SseDecoder().feed(events)[-1].name == "response.failed"


def test_an_output_is_the_beginning_of_the_next_input() -> None:
    response, _ = translated([whole("tool_calls")])
    first = parse_responses_request(body())
    earlier = [*input_items(first), *items_of_output(response["output"])]
    following = parse_responses_request(
        body(
            input=[{"type": "function_call_output", "call_id": "c", "output": "42"}],
            previous_response_id="resp_1",
        )
    )
    messages = json.loads(chat_of_responses(following, earlier))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"] == [call]
