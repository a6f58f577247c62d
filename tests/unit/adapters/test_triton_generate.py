"""Triton by the generate extension: what is sent, and what unstreamed answers become."""

import json
from typing import Any

import pytest

from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest, UpstreamFailed
from headrace.gateway.rewriter import StreamRewriter, rewrite_whole, said_bytes
from headrace.sim.engine_wire import generated_stream, pieces, stream_usage, without_cached
from headrace.spec.settlements import TokenUsage

both = pytest.mark.parametrize("name", ["triton_vllm", "triton_tensorrt_llm"])


def asked(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    dialect = find_adapter(name).dialect
    assert dialect is not None
    chat = {"model": "a model", "messages": [{"role": "user", "content": "Hi"}], **fields}
    path, body = dialect.request(json.dumps(chat).encode(), None)
    return path, json.loads(body)


@both
def test_turns_become_lines_of_their_speakers(name: str) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "Bye"}]},
    ]
    path, body = asked(name, messages=messages)

    assert path == "/v2/models/a%20model/generate"
    assert body["text_input"] == "Be brief.\nUser: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:"
    assert body["stream"] is False


def test_what_the_caller_chose_is_a_field_of_its_own_for_tensorrt_llm() -> None:
    path, body = asked(
        "triton_tensorrt_llm", stream=True, max_tokens=7, temperature=0.5, top_k=3, seed=11
    )

    assert path == "/v2/models/a%20model/generate_stream"
    assert body == {
        "text_input": "User: Hi\nAssistant:",
        "max_tokens": 7,
        "bad_words": "",
        "stop_words": ["\nUser:"],
        "stream": True,
        "exclude_input_in_output": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 11,
        "random_seed": 11,
    }


def test_what_the_caller_chose_is_one_text_for_vllm_and_use_is_asked_for() -> None:
    _, body = asked("triton_vllm", max_completion_tokens=7, top_p=0.5, min_tokens=2, top_k=-1)

    sampling = json.loads(body.pop("sampling_parameters"))
    assert sampling == {"max_tokens": 7, "stop": ["\nUser:"], "top_p": 0.5, "min_tokens": 2}
    assert body == {
        "text_input": "User: Hi\nAssistant:",
        "stream": False,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }


@both
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("guided_regex", {"guided_regex": "a+"}),
        ("messages", {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}),
    ],
)
def test_what_has_no_word_there_is_refused_by_name(
    name: str, field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(name, **fields)
    assert refused.value.param == field


def test_an_unstreamed_answer_of_vllm_tells_its_use_and_its_end() -> None:
    answer = {
        "model_name": "internal",
        "text_output": ["Grüße"],
        "finish_reason": "length",
        "num_input_tokens": 9,
        "num_output_tokens": [3],
    }
    whole = rewrite_whole(
        json.dumps(answer).encode(), "logical", find_adapter("triton_vllm").dialect, 7
    )
    chat = json.loads(whole.body)

    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "Grüße"}
    assert chat["choices"][0]["finish_reason"] == "length"
    assert (chat["model"], chat["created"]) == ("logical", 7)
    assert whole.usage == TokenUsage(9, 0, 3)


def test_a_stream_of_tensorrt_llm_tells_its_use_by_event_and_an_older_one_none() -> None:
    adapter = find_adapter("triton_tensorrt_llm")
    told = {}
    for tells_use in (True, False):
        stream = StreamRewriter("logical", adapter, usage_chunk=False, usage_in_every_chunk=False)
        stream.feed(generated_stream(tells_end=False, tells_use=tells_use))
        stream.finish()
        told[tells_use] = stream.usage
        assert stream.content_chunks == len(pieces)
    assert told == {True: without_cached(stream_usage), False: None}


def test_an_unstreamed_answer_of_an_older_tensorrt_llm_is_guessed_by_its_text_alone() -> None:
    answer = b'{"model_name":"ensemble","model_version":"1","text_output":"Gr\xc3\xbc\xc3\x9fe"}'
    whole = rewrite_whole(answer, "logical", find_adapter("triton_tensorrt_llm").dialect)

    assert whole.usage is None
    assert said_bytes(whole.body) == len("Grüße".encode())


@both
@pytest.mark.parametrize("answer", [b"{}", b"[]", b"<html>", b'{"text_output":7}'])
def test_an_answer_without_text_is_the_engines_failure(name: str, answer: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        rewrite_whole(answer, "logical", find_adapter(name).dialect)


def test_an_error_inside_a_stream_ends_it_without_its_words() -> None:
    adapter = find_adapter("triton_tensorrt_llm")
    stream = StreamRewriter("logical", adapter, usage_chunk=False, usage_in_every_chunk=False)
    stream.feed(b'data: {"text_output":"Gr"}\n\n')
    passed = stream.feed(b'data: {"error":"out of memory at /srv/x"}\n\n')

    assert passed == b""
    assert stream.error_body is not None
    assert not stream.may_end


def test_a_stream_that_has_an_end_and_nothing_before_it_is_the_engines_failure() -> None:
    adapter = find_adapter("triton_tensorrt_llm")
    stream = StreamRewriter("logical", adapter, usage_chunk=False, usage_in_every_chunk=False)

    with pytest.raises(UpstreamFailed):
        stream.finish()
