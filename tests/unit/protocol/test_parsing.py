import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest
from headrace.protocol.parsing import (
    parse_chat_request,
    parse_completion_request,
    replace_fields,
    unknown_fields,
    unsupported_fields,
)
from headrace.protocol.requests import ChatRequest, CompletionRequest

hello = [{"role": "user", "content": "hello"}]


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": hello, **fields}).encode()


def text_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hello", **fields}).encode()


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(body)
    return caught.value


def test_all_supported_fields_are_read() -> None:
    request = parse_chat_request(
        chat_body(
            max_completion_tokens=7,
            min_tokens=2,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            seed=-3,
            stop=["a", "b"],
            stop_token_ids=[1, 2],
            ignore_eos=True,
            n=1,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
            user="u",
            metadata={"k": "v"},
        )
    )
    assert request.output_limit == 7
    assert request.stop_strings == ("a", "b")
    assert request.stop_token_ids == [1, 2]
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 40)
    assert request.wants_usage_chunk
    assert request.wants_usage_in_every_chunk


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    request = parse_chat_request(chat_body(messages=[{"role": "user", "content": parts}]))
    assert request.messages[0].text == "hello"


def test_null_means_not_given() -> None:
    nulls = dict.fromkeys(["max_tokens", "temperature", "stop", "n", "stream", "tools", "echo"])
    request = parse_chat_request(chat_body(**nulls))
    assert request.output_limit is None
    assert request.stop_strings == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "size": 1}]}, "messages[0].size"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type",
        ),
        ({"model": 1}, "model"),
        ({"model": ""}, "model"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 1025}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"priority": 1}, "priority"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 129}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"logit_bias": {"cat": 5}}, "logit_bias"),
        ({"logit_bias": {"1": 5, "01": 6}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"logprobs": 0}, "logprobs"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat_body(**fields))
    assert error.param == param
    assert error.http_status == 400
    assert param.rpartition(".")[2].partition("[")[0] in error.message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tool_choice": "any"}, "it may be none, auto, required, or a function by name"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "it may be system, developer, user, assistant, tool",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "text": ""}]}]},
            "it may be text",
        ),
    ],
)
def test_a_field_of_fixed_values_says_which(fields: dict[str, Any], says: str) -> None:
    assert says in refusal(chat_body(**fields)).message


def test_half_a_surrogate_pair_is_named() -> None:
    assert "surrogate pair" in refusal(b'{"model":"\\ud800"}').message
    assert "surrogate pair" not in refusal(b'{"model":"abc').message


@pytest.mark.parametrize("name", sorted(unsupported_fields))
def test_an_unsupported_field_passes_only_where_it_asks_for_nothing(name: str) -> None:
    for neutral in (None, *unsupported_fields[name]):
        parse_chat_request(chat_body(**{name: neutral}))
    assert refusal(chat_body(**{name: "something else"})).param == name


def test_a_missing_field_is_named() -> None:
    assert refusal(b'{"model":"m"}').param == "messages"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"model":"m"} trailing',
        b'{"model":NaN}',
        b'{"model":"\xff"}',
        b'{"unknown":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"temperature":1e999}',
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).http_status == 400


def test_without_strict_unknown_fields_are_for_the_caller_to_report() -> None:
    body = chat_body(zebra=1, apple=2, tools=None)
    assert parse_chat_request(body, strict=False).model == "m"
    assert unknown_fields(body, ChatRequest) == ("apple", "zebra")


def test_replaced_fields_leave_the_others_byte_for_byte() -> None:
    body = b'{"model":"a","temperature":0.10000,"messages":[ ]}'
    changed = replace_fields(body, {"model": "b", "stream": True})
    assert changed == b'{"model":"b","temperature":0.10000,"messages":[ ],"stream":true}'


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("one", ["one"]),
        (["one"], ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_are_texts_or_token_ids(sent: object, prompts: object) -> None:
    assert parse_completion_request(text_body(prompt=sent)).prompts == prompts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"suffix": "end", "echo": True}, "echo"),
        ({"suffix": "end", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request(text_body(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1, "a"], [[1], "a"], [1.5], [-1], 7, None, [[[1]]], [["a"]]]
)
def test_any_other_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request(text_body(prompt=prompt))
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


texts = st.text(alphabet="a \x00é😀", max_size=5)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=3)
field_names = st.sampled_from(
    [*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *unsupported_fields]
)


def outcome(parse: Callable[[bytes], object], body: bytes) -> object:
    try:
        return parse(body)
    except InvalidRequest as error:
        return error.param


@given(st.dictionaries(field_names, json_values, max_size=6))
def test_any_object_is_a_request_or_a_named_refusal(fields: dict[str, Any]) -> None:
    assert outcome(parse_chat_request, chat_body(**fields))
    assert outcome(parse_completion_request, text_body(**fields))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat_request(body)
