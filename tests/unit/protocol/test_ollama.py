import json
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest, NotFound
from headrace.protocol.errors import error_body
from headrace.protocol.ollama import (
    chat_of_generate,
    chat_of_ollama,
    completion_of_generate,
    parse_ollama_chat,
    parse_ollama_generate,
    parse_ollama_show,
)
from headrace.protocol.ollama_answers import OllamaTranslator
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.translation import TranslatedAnswer
from headrace.sim.clock import ManualClock

hello = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    sent = json.dumps({"model": "m:latest", "messages": hello, **fields}).encode()
    made = chat_of_ollama(parse_ollama_chat(sent))
    parse_chat_request(made)  # it is one that every engine of ours takes
    fields_made: dict[str, Any] = json.loads(made)
    return fields_made


def test_options_have_their_openai_names() -> None:
    made = chat(
        options={"num_predict": 7, "repeat_penalty": 1.1, "stop": ["x"], "num_ctx": 99, "seed": 1},
        format="json",
        think=False,
    )
    assert (made["model"], made["max_tokens"], made["repetition_penalty"]) == ("m", 7, 1.1)
    assert (made["stop"], made["seed"]) == (["x"], 1)
    assert made["response_format"] == {"type": "json_object"}
    assert made["reasoning_effort"] == "none"
    assert made["stream"] is True
    assert "stream" not in chat(stream=False)
    assert "max_tokens" not in chat(options={"num_predict": -1})


def test_a_suffix_asks_for_what_fills_the_gap() -> None:
    sent = json.dumps({"model": "m", "prompt": "a(", "suffix": ")", "stream": False}).encode()
    completion = parse_completion_request(completion_of_generate(parse_ollama_generate(sent)))
    assert (completion.prompt, completion.suffix) == ("a(", ")")


def test_a_suffix_has_no_system_message_beside_it() -> None:
    sent = json.dumps({"model": "m", "prompt": "a", "suffix": "b", "system": "be kind"}).encode()
    with pytest.raises(InvalidRequest) as caught:
        completion_of_generate(parse_ollama_generate(sent))
    assert caught.value.param == "system"


def test_calls_without_ids_find_their_results() -> None:
    made = chat(
        messages=[
            *hello,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "42", "tool_name": "f"},
        ]
    )
    _, said, result = made["messages"]
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]


def test_a_prompt_is_a_chat_unless_it_is_raw() -> None:
    sent = json.dumps({"model": "m", "prompt": "p", "system": "s"}).encode()
    made = parse_chat_request(chat_of_generate(parse_ollama_generate(sent)))
    assert [(turn.role, turn.text) for turn in made.messages] == [("system", "s"), ("user", "p")]
    raw = parse_ollama_generate(json.dumps({"model": "m", "prompt": "p", "raw": True}).encode())
    assert parse_completion_request(completion_of_generate(raw)).prompts == ["p"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"stop": ""}}, "options.stop"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}, "messages[0].images"),
        ({"template": "{{ x }}"}, "template"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(**fields)
    assert refused.value.param == param


def test_a_model_is_asked_about_by_either_name() -> None:
    assert parse_ollama_show(b'{"model": "m:latest"}') == "m"
    assert parse_ollama_show(b'{"name": "m"}') == "m"
    with pytest.raises(InvalidRequest):
        parse_ollama_show(b"{}")


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


usage = {"prompt_tokens": 9, "completion_tokens": 5}
stream = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "hm"}),
    chunk({"content": "Let "}),
    chunk({"content": "me."}),
    chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk({}, "tool_calls"),
    b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]


def translated(pieces: list[bytes], *, is_chat: bool = True, status: int = 200) -> bytes:
    answer = TranslatedAnswer(OllamaTranslator("m", ManualClock(), is_chat=is_chat))
    is_stream = pieces[0].startswith(b"data:")
    content_type = answer.begin(status, b"text/event-stream" if is_stream else b"application/json")
    assert content_type == (b"application/x-ndjson" if is_stream else b"application/json")
    sent = [answer.feed(piece, last=False) for piece in pieces]
    return b"".join([*sent, answer.feed(b"", last=True)])


def test_a_stream_is_lines_and_the_last_one_has_the_numbers() -> None:
    lines = [json.loads(line) for line in translated(stream).splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line["message"]["content"] for line in lines) == "Let me."
    assert "".join(line["message"].get("thinking", "") for line in lines) == "hm"
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert calls == [{"function": {"name": "f", "arguments": {"a": 1}}}]
    assert (lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == (9, 5)
    assert lines[-1]["done_reason"] == "stop"


def test_a_text_completion_is_a_response() -> None:
    body = {"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}], "usage": usage}
    answer = json.loads(translated([json.dumps(body).encode()], is_chat=False))
    assert (answer["response"], answer["done"], answer["done_reason"]) == ("abc", True, "length")


def test_errors_are_one_line() -> None:
    error = error_body(NotFound("no such model"))
    assert json.loads(translated([error], status=404)) == {"error": "no such model"}
    broken = translated([*stream[:3], b"data: " + error + b"\n\n", *stream[3:]])
    assert json.loads(broken.splitlines()[-1]) == {"error": "no such model"}
