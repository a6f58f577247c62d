"""Chats to Anthropic's API and back: what comes out means what went in, however a stream is cut.

Our own reading of that API (`anthropic`, `anthropic_answers`), which its official client is tested
against, is the other side.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest, UpstreamFailed
from headrace.protocol.anthropic import chat_of_messages, parse_messages_request
from headrace.protocol.anthropic_answers import MessagesTranslator
from headrace.protocol.chat_of_message import ChatChunks, chat_of_message
from headrace.protocol.messages_of_chat import messages_of_chat, without_words
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.requests import ChatRequest
from headrace.protocol.sse import SseDecoder, done_data

hello = {"role": "user", "content": "hello"}
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
created = 1_800_000_000


def messages(**fields: Any) -> dict[str, Any]:
    made = messages_of_chat(json.dumps({"model": "m", "messages": [hello], **fields}).encode())
    parse_messages_request(made)  # it is one that the API takes
    found: dict[str, Any] = json.loads(made)
    return found


def test_what_both_apis_have_keeps_its_meaning() -> None:
    made = messages(
        messages=[{"role": "system", "content": "Be brief."}, hello],
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop=["x", "y"],
        user="u",
        stream=True,
        stream_options={"include_usage": True},
    )
    assert made == {
        "model": "m",
        "max_tokens": 7,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop_sequences": ["x", "y"],
        "metadata": {"user_id": "u"},
        "stream": True,
    }


def test_a_limit_is_always_sent() -> None:
    assert messages()["max_tokens"] == 4096


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"seed": 1},
        {"logprobs": True},
        {"logit_bias": {"1": 2}},
        {"frequency_penalty": 0.5},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a"},
        {"min_tokens": 3},
    ],
)
def test_what_it_has_no_word_for_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        messages(**fields)
    assert refused.value.param == next(iter(fields))


def test_what_asks_for_nothing_is_left_out() -> None:
    made = messages(n=1, logprobs=False, frequency_penalty=0, logit_bias={}, stop=None)
    assert set(made) == {"model", "max_tokens", "messages"}


def test_every_field_of_a_chat_is_sent_refused_or_of_no_effect_there() -> None:
    sent = {
        *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
        *("top_k", "stop", "stream", "user", "tools", "tool_choice", "parallel_tool_calls"),
        *("reasoning_effort", "reasoning_budget", "response_format"),
    }
    for_us = {  # what the gateway itself reads, records, or asks of an answer that is ours anyway
        *("stream_options", "metadata", "safety_identifier", "prompt_cache_key", "priority"),
        *("deadline_ms", "include_reasoning", "skip_special_tokens", "kv_transfer_params"),
        *("top_logprobs", "xtc_threshold", "dry_base", "dry_allowed_length"),
        "dry_sequence_breakers",  # these last ones say nothing without another that is refused
    }
    assert set(ChatRequest.__struct_fields__) == sent | for_us | set(without_words)


@pytest.mark.parametrize(
    "choice", ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
)
def test_tools_turns_and_thoughts_survive_the_way_there_and_back(choice: object) -> None:
    chat: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]},
            {"role": "assistant", "content": "Ah.", "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {"role": "tool", "tool_call_id": "c2", "content": "43"},
            {"role": "user", "content": "And?"},
        ],
        "tools": [tool],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
    }  # fmt: skip
    back = chat_of_messages(parse_messages_request(messages_of_chat(json.dumps(chat).encode())))
    parse_chat_request(back)
    found = json.loads(back)
    assert found["messages"] == [
        {"role": "system", "content": "Be brief."},
        chat["messages"][1],
        {key: value for key, value in chat["messages"][2].items() if key != "reasoning_content"},
        *chat["messages"][3:],
    ]
    assert found["tool_choice"] == choice
    assert found.get("parallel_tool_calls", choice == "none") is (choice == "none")
    assert found["reasoning_effort"] == "high"
    (offered,) = found["tools"]
    assert offered["function"]["name"] == "f"


# A turn of deltas as an engine of ours sends them, to be told by that API and read again.
texts = st.text(min_size=1, max_size=8)
deltas = st.lists(
    st.one_of(
        texts.map(lambda text: {"content": text}),
        texts.map(lambda text: {"reasoning_content": text}),
        texts.map(lambda value: {"call": json.dumps({"value": value})}),
    ),
    max_size=8,
)
usages = st.builds(
    lambda prompt, cached, output: {
        "prompt_tokens": prompt + cached,
        "completion_tokens": output,
        "total_tokens": prompt + cached + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    },
    *[st.integers(0, 1000)] * 3,
)


def chunks_of(parts: list[dict[str, str]], usage: dict[str, Any], reason: str) -> list[bytes]:
    made: list[dict[str, Any]] = []
    calls = 0
    for part in parts:
        delta: dict[str, Any] = dict(part)
        if "call" in delta:
            function = {"name": "f", "arguments": delta.pop("call")}
            delta = {"tool_calls": [{"index": calls, "id": f"c{calls}", "function": function}]}
            calls += 1
        made.append({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    made.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    made.append({"choices": [], "usage": usage})
    return [json.dumps(chunk).encode() for chunk in made]


def told(chunks: list[bytes]) -> dict[str, Any]:
    """What a stream of chat chunks says, whatever it was cut into."""
    found: dict[str, Any] = {"text": "", "thought": "", "calls": {}, "reason": None, "usage": None}
    for data in chunks:
        chunk = json.loads(data)
        if chunk.get("usage"):
            found["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            found["text"] += delta.get("content") or ""
            found["thought"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                kept = found["calls"].setdefault(call["index"], ["", ""])
                kept[0] += call["function"].get("name") or ""
                kept[1] += call["function"].get("arguments") or ""
            found["reason"] = choice["finish_reason"] or found["reason"]
    return found


@given(parts=deltas, usage=usages, reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_stream_says_the_same_after_both_translations(
    parts: list[dict[str, str]], usage: dict[str, Any], reason: str
) -> None:
    sent = chunks_of(parts, usage, reason)
    there = MessagesTranslator("msg_1", "m")
    events = b"".join([*(there.chunk(chunk) for chunk in sent), there.finish()])
    back = ChatChunks(created)
    received = [data for event in SseDecoder().feed(events) for data in back.feed(event.data)]
    assert received.pop() == done_data
    assert told(received) == told(sent)
    assert {json.loads(data)["id"] for data in received} == {"chatcmpl-1"}
    assert {json.loads(data)["created"] for data in received} == {created}


@given(parts=deltas, usage=usages, reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_whole_answer_says_the_same_as_its_stream(
    parts: list[dict[str, str]], usage: dict[str, Any], reason: str
) -> None:
    wanted = told(chunks_of(parts, usage, reason))
    message: dict[str, Any] = {"role": "assistant", "content": wanted["text"]}
    if wanted["thought"]:
        message["reasoning_content"] = wanted["thought"]
    if wanted["calls"]:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": text}}
            for i, (name, text) in wanted["calls"].items()
        ]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    sent = json.dumps({"choices": [choice], "usage": usage}).encode()
    found = json.loads(chat_of_message(MessagesTranslator("msg_1", "m").whole(sent), created))
    (answer,) = found["choices"]
    assert (answer["message"]["content"] or "") == wanted["text"]
    assert answer["message"].get("reasoning_content", "") == wanted["thought"]
    called = answer["message"].get("tool_calls", [])
    assert [json.loads(call["function"]["arguments"]) for call in called] == [
        json.loads(text) for _, text in wanted["calls"].values()
    ]
    assert answer["finish_reason"] == reason
    assert found["usage"] == usage


def test_an_error_in_a_stream_is_one_in_ours() -> None:
    (data,) = ChatChunks(created).feed(
        b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    )
    assert json.loads(data)["error"]["message"] == "busy"


def test_what_is_no_answer_is_the_engines_fault() -> None:
    with pytest.raises(UpstreamFailed):
        chat_of_message(b"<html>", created)
    with pytest.raises(msgspec.DecodeError):
        ChatChunks(created).feed(b"<html>")
    with pytest.raises(InvalidRequest):
        messages_of_chat(b'{"model": "m"}')
