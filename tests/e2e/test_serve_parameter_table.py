"""The table of parameters in docs/reference/api.md, asked for cell by cell of a real server.

`yes`: the value in `shown` does what stands beside it, and a value of the wrong kind is a 400 that
names the field. `400` and empty: the field is refused by name.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.sim.api_reply import Reply
from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

page = Path(__file__).parents[2] / "docs/reference/api.md"
model = "smollm2-135m-instruct"
key = "table"
end_id, comma_id, four_id = (
    2,
    28,
    1876,
)  # <|im_end|>, "," and " four" in the demo model's vocabulary
asking = [{"role": "user", "content": "Count from one to twenty in words."}]
in_a_sentence = [{"role": "user", "content": "Name the capital of France."}]
paths = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama chat": "/api/chat",
    "ollama generate": "/api/generate",
}
greedy = {"options": {"temperature": 0, "num_predict": 6}, "stream": False}
plain: dict[str, dict[str, Any]] = {
    "chat": {"messages": asking, "temperature": 0, "max_tokens": 6},
    "completions": {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 6},
    "responses": {"input": "Count to twenty.", "temperature": 0, "max_output_tokens": 6},
    "messages": {"messages": asking, "temperature": 0, "max_tokens": 6},
    "ollama chat": {"messages": asking, **greedy},
    "ollama generate": {"prompt": "One, two, three,", **greedy},
}


Shows = Callable[[Reply, Reply], bool]


@dataclass(frozen=True)
class Shown:
    """What shows that a parameter works."""

    fields: dict[str, Any]  # of the request, the parameter among them
    by: Shows  # of its answer, and of the answer to the plain request with `other`
    other: dict[str, Any] | None = None  # None: the plain request alone


def same(one: Reply, other: Reply) -> bool:
    return one.texts == other.texts


def differs(one: Reply, other: Reply) -> bool:
    return one.texts != other.texts


def longer_prompt(one: Reply, other: Reply) -> bool:
    return one.prompt_tokens > other.prompt_tokens


def matches(pattern: str) -> Shows:
    return lambda one, _: all(re.match(pattern, text) for text in one.texts)


def makes(tokens: int) -> Shows:
    return lambda one, _: one.output_tokens == tokens


def calls_once(one: Reply, _: Reply) -> bool:
    return one.called == ["f"]


def is_stream(one: Reply, _: Reply) -> bool:
    return one.headers["content-type"].split(";")[0] in (
        "text/event-stream",
        "application/x-ndjson",
    )


def echoes(name: str, value: Any) -> Shows:
    return lambda one, _: one.body[name] == value


only = {"allowed_token_ids": [comma_id, four_id]}
few = {"allowed_token_ids": [comma_id, four_id, 30, 338, 827]}  # which come again and again
random = {"temperature": 1.0, "seed": 7}
hot = {"temperature": 5.0, "seed": 7}
says_commas = {"logit_bias": {str(comma_id): 100}}
commas = {"stop_token_ids": [comma_id], **says_commas}
ends = {"allowed_token_ids": [end_id]}
schema = {"type": "object", "properties": {}, "additionalProperties": False}
function = {"name": "f", "parameters": schema}
tools = [{"type": "function", "function": function}]
forced = {"tools": tools, "tool_choice": "required", "max_tokens": 40}
records = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}

of_openai: dict[str, Shown] = {
    "allowed_token_ids": Shown({"allowed_token_ids": [comma_id]}, matches(",,,,,,$")),
    "bad_words": Shown({"bad_words": ["The", "four"]}, matches("(?!.*(The|four))")),
    "deadline_ms": Shown(
        {"deadline_ms": 1, "max_tokens": 2000, "ignore_eos": True}, lambda one, _: one.status == 504
    ),
    "dry_multiplier": Shown({"dry_multiplier": 20, **only}, differs, only),
    "dry_base": Shown(
        {"dry_base": 10, "dry_multiplier": 0.2, **only, "max_tokens": 16},
        differs,
        {"dry_multiplier": 0.2, "dry_base": 1, **only, "max_tokens": 16},
    ),
    "dry_allowed_length": Shown(
        {"dry_allowed_length": 50, "dry_multiplier": 20, **only}, same, only
    ),
    "dry_sequence_breakers": Shown(
        {"dry_sequence_breakers": [",", "four"], "dry_multiplier": 20, **only}, same, only
    ),
    "frequency_penalty": Shown({"frequency_penalty": 2, **few}, differs, few),
    "guided_choice": Shown({"guided_choice": ["blue", "red"]}, matches("(blue|red)$")),
    "guided_grammar": Shown({"guided_grammar": 'start: "x" "y"'}, matches("xy$")),
    "guided_json": Shown({"guided_json": {"enum": ["blue"]}}, matches('"blue"$')),
    "guided_regex": Shown({"guided_regex": "[xy]{3}"}, matches("[xy]{3}$")),
    "ignore_eos": Shown({"ignore_eos": True, **ends}, makes(6), ends),
    "include_stop_str_in_output": Shown(
        {"include_stop_str_in_output": True, "stop": [",,"], **says_commas}, matches(",,$")
    ),
    "kv_transfer_params": Shown(
        {"kv_transfer_params": {"do_remote_decode": True}},
        lambda one, _: one.status == 400 and one.body["error"]["param"] == "kv_transfer_params",
    ),
    "logit_bias": Shown({"logit_bias": {str(comma_id): 100}}, matches(",,,,,,$")),
    "max_tokens": Shown({"max_tokens": 3}, makes(3)),
    "min_p": Shown({"min_p": 0.99, **random}, same),
    "min_tokens": Shown({"min_tokens": 4, **commas}, makes(4), commas),
    "model": Shown({"model": "another"}, lambda one, _: one.status == 404),
    "n": Shown({"n": 2, **random}, lambda one, _: len(set(one.texts)) == 2),
    "presence_penalty": Shown({"presence_penalty": 2, **few}, differs, few),
    "priority": Shown({"priority": 3}, same),
    "prompt_logprobs": Shown({"prompt_logprobs": 1}, lambda one, _: "prompt_logprobs" in one.text),
    "repetition_penalty": Shown({"repetition_penalty": 5, **few}, differs, few),
    "response_format": Shown({"response_format": {"type": "json_object"}}, matches(r"\s*\{")),
    "return_token_ids": Shown(
        {"return_token_ids": True}, lambda one, _: len(one.body["choices"][0]["token_ids"]) == 6
    ),
    "seed": Shown({**random, "seed": 8}, differs, random),
    "skip_special_tokens": Shown(
        {"skip_special_tokens": False, "ignore_eos": True, **ends}, matches(r"(<\|im_end\|>){6}$")
    ),
    "stop": Shown({"stop": [",,"], **says_commas}, lambda one, _: one.ended_by == "stop"),
    "stop_token_ids": Shown(
        {"stop_token_ids": [comma_id], **only, "logit_bias": {str(four_id): -100}}, matches("$")
    ),
    "stream": Shown({"stream": True}, is_stream),
    "stream_options": Shown(
        {"stream": True, "stream_options": {"include_usage": True}},
        lambda one, _: '"completion_tokens":6' in one.text,
    ),
    "structured_outputs": Shown({"structured_outputs": {"regex": "[xy]{3}"}}, matches("[xy]{3}$")),
    "temperature": Shown(hot, differs),
    "top_k": Shown({"top_k": 1, **hot}, same),
    "top_p": Shown({"top_p": 0.0001, **hot}, same),
    "truncate_prompt_tokens": Shown(
        {"truncate_prompt_tokens": 2}, lambda one, _: one.prompt_tokens == 2
    ),
    "typical_p": Shown({"typical_p": 0.01, **hot}, differs, hot),
    "xtc_probability": Shown(
        {"xtc_probability": 1, "xtc_threshold": 0.001, **random}, differs, random
    ),
    "xtc_threshold": Shown({"xtc_threshold": 0.6, "xtc_probability": 1, **random}, same, random),
    **{name: Shown({name: value}, same) for name, value in records.items()},
}
shown: dict[str, dict[str, Shown]] = {
    "chat": {
        **of_openai,
        "chat_template_kwargs": Shown({"chat_template_kwargs": {"unread": 1}}, same),
        "include_reasoning": Shown({"include_reasoning": False}, same),  # it does not think
        "logprobs": Shown(
            {"logprobs": True},
            lambda one, _: len(one.body["choices"][0]["logprobs"]["content"]) == 6,
        ),
        "max_completion_tokens": Shown({"max_completion_tokens": 3, "max_tokens": None}, makes(3)),
        "messages": Shown({"messages": [{"role": "user", "content": "Hi!"}]}, differs),
        "parallel_tool_calls": Shown({**forced, "parallel_tool_calls": False}, calls_once),
        "reasoning_budget": Shown({"reasoning_budget": 9}, same),
        "reasoning_effort": Shown({"reasoning_effort": "low"}, same),
        "tool_choice": Shown(
            {**forced, "tool_choice": {"type": "function", "function": {"name": "f"}}}, calls_once
        ),
        "tools": Shown({"tools": tools}, longer_prompt),
        "top_logprobs": Shown(
            {"logprobs": True, "top_logprobs": 2},
            lambda one, _: all(
                len(token["top_logprobs"]) == 2
                for token in one.body["choices"][0]["logprobs"]["content"]
            ),
        ),
    },
    "completions": {
        **of_openai,
        "best_of": Shown({"best_of": 2}, makes(12)),
        "echo": Shown({"echo": True}, matches("One, two, three, four,")),
        "logprobs": Shown(
            {"logprobs": 1}, lambda one, _: len(one.body["choices"][0]["logprobs"]["tokens"]) == 6
        ),
        "prompt": Shown(
            {"prompt": ["A, B, C", "One, two, three,"]},
            lambda one, other: len(one.texts) == 2 and one.texts[1:] == other.texts,
        ),
        "suffix": Shown(  # the demo model has no tokens for it
            {"suffix": "x"},
            lambda one, _: one.status == 400 and one.body["error"]["param"] == "suffix",
        ),
    },
    "responses": {
        "background": Shown(
            {"background": True}, lambda one, _: one.body["status"] in ("queued", "in_progress")
        ),
        "include": Shown({"include": []}, same),
        "input": Shown({"input": [{"role": "user", "content": "Hi!"}]}, differs),
        "instructions": Shown({"instructions": "Answer in French. " * 9}, longer_prompt),
        "max_output_tokens": Shown({"max_output_tokens": 3}, makes(3)),
        "metadata": Shown({"metadata": {"a": "b"}}, echoes("metadata", {"a": "b"})),
        "model": Shown({"model": "another"}, lambda one, _: one.status == 404),
        "parallel_tool_calls": Shown(
            {
                "tools": [{"type": "function", **function}],
                "tool_choice": "required",
                "parallel_tool_calls": False,
                "max_output_tokens": 40,
            },
            calls_once,
        ),
        "previous_response_id": Shown(
            {"previous_response_id": "resp_none"}, lambda one, _: one.status == 404
        ),
        "prompt_cache_key": Shown({"prompt_cache_key": "k"}, same),
        "reasoning": Shown({"reasoning": {"effort": "low"}}, same),
        "safety_identifier": Shown({"safety_identifier": "s"}, same),
        "service_tier": Shown({"service_tier": "auto"}, same),
        "store": Shown({"store": False}, echoes("store", False)),
        "stream": Shown({"stream": True}, is_stream),
        "stream_options": Shown(
            {"stream": True, "stream_options": {"include_obfuscation": False}}, is_stream
        ),
        "temperature": Shown({"temperature": 5}, differs),
        "text": Shown({"text": {"format": {"type": "json_object"}}}, matches(r"\s*\{")),
        "tool_choice": Shown(
            {
                "tools": [{"type": "function", **function}],
                "tool_choice": {"type": "function", "name": "f"},
                "max_output_tokens": 40,
            },
            calls_once,
        ),
        "tools": Shown({"tools": [{"type": "function", **function}]}, longer_prompt),
        "top_p": Shown({"top_p": 0.0001, "temperature": 5}, same),
        "truncation": Shown({"truncation": "disabled"}, same),
        "user": Shown({"user": "u"}, same),
    },
    "messages": {
        "max_tokens": Shown({"max_tokens": 3}, makes(3)),
        "messages": Shown({"messages": [{"role": "user", "content": "Hi!"}]}, differs),
        "metadata": Shown({"metadata": {"user_id": "u"}}, same),
        "model": Shown({"model": "another"}, lambda one, _: one.status == 404),
        "output_config": Shown(
            {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
            matches(r"\{\s*\}$"),
        ),
        "service_tier": Shown({"service_tier": "auto"}, same),
        "stop_sequences": Shown(
            {"stop_sequences": [" "], "messages": in_a_sentence},
            lambda one, _: one.body["stop_sequence"] == " ",
        ),
        "stream": Shown({"stream": True}, is_stream),
        "system": Shown({"system": "Answer in French, please, and with some wit."}, differs),
        "temperature": Shown({"temperature": 5}, differs),
        "thinking": Shown({"thinking": {"type": "disabled"}}, same),
        "tool_choice": Shown(
            {
                "tools": [{"name": "f", "input_schema": schema}],
                "tool_choice": {"type": "tool", "name": "f"},
                "max_tokens": 40,
            },
            calls_once,
        ),
        "tools": Shown({"tools": [{"name": "f", "input_schema": schema}]}, longer_prompt),
        "top_k": Shown({"top_k": 1, "temperature": 5}, same),
        "top_p": Shown({"top_p": 0.0001, "temperature": 5}, same),
    },
}
of_ollama: dict[str, Shown] = {
    "format": Shown({"format": "json"}, matches(r"\s*\{")),
    "keep_alive": Shown({"keep_alive": "5m"}, same),
    "model": Shown({"model": "another"}, lambda one, _: one.status == 404),
    "options": Shown({"options": {"temperature": 0, "num_predict": 3}}, makes(3)),
    "stream": Shown({"stream": True}, is_stream),
    "think": Shown({"think": False}, same),
}
shown["ollama chat"] = {
    **of_ollama,
    "messages": Shown({"messages": [{"role": "user", "content": "Hi!"}]}, differs),
    "tools": Shown({"tools": tools}, longer_prompt),
}
shown["ollama generate"] = {
    **of_ollama,
    "prompt": Shown({"prompt": "A, B, C"}, differs),
    "raw": Shown({"raw": True}, lambda one, other: one.prompt_tokens < other.prompt_tokens),
    "suffix": Shown({"suffix": "x"}, lambda one, _: one.status == 400),  # as for completions
    "system": Shown({"system": "Answer in French, please."}, differs),
}


def cells() -> Iterator[tuple[str, str, str, str]]:
    """Each cell: endpoint, parameter, its type in words, mark."""
    lines = page.read_text().partition("## Parameters")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    titles = rows[0][2:]
    for name, kind, *marks in rows[2:]:
        for title, mark in zip(titles, marks, strict=True):
            yield title, name.strip("`"), kind, mark


every_cell = list(cells())
working = [(title, name, kind) for title, name, kind, mark in every_cell if mark == "yes"]
refused = [(title, name, mark) for title, name, _, mark in every_cell if mark != "yes"]


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    environment = {"HEADRACE_API_KEY": key}
    with ServeProcess.start(model, "--kv-tokens", "8192", environment=environment) as process:
        yield process


Ask = Callable[..., Reply]


@pytest.fixture(scope="module")
def ask(served: ServeProcess) -> Iterator[Ask]:
    """Sends the plain request of an endpoint with some fields changed; None leaves one out."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=served.url, headers=headers, timeout=100) as client:

        @cache
        def post(path: str, content: str) -> Reply:
            reply = client.post(path, content=content)
            return Reply(reply.status_code, dict(reply.headers), reply.text)

        def asked(title: str, fields: dict[str, Any]) -> Reply:
            body = {"model": model, **plain[title], **fields}
            return post(paths[title], json.dumps(body))

        yield asked


def names_field(reply: Reply, name: str) -> bool:
    """Whether it is a 400 about that field: by `param` where the API's errors have one."""
    if reply.status != 400:
        return False
    error = reply.body["error"]
    if isinstance(error, dict) and "param" in error:
        return re.match(rf"{name}\b", error["param"] or "") is not None
    message = error if isinstance(error, str) else error["message"]
    return re.search(rf"\b{name}\b", message) is not None


def test_each_cell_of_the_page_is_walked() -> None:
    assert {(title, name) for title, name, _ in working} == {
        (title, name) for title, rows in shown.items() for name in rows
    }
    assert {title for title, *_ in every_cell} == set(paths)


@pytest.mark.parametrize(("title", "name", "kind"), working)
def test_what_the_page_says_works_does(ask: Ask, title: str, name: str, kind: str) -> None:
    row = shown[title][name]
    reply, other = ask(title, row.fields), ask(title, row.other or {})
    assert other.status == 200, other.text
    assert row.by(reply, other), (reply.text, other.text)


@pytest.mark.parametrize(("title", "name", "kind"), working)
def test_a_value_of_the_wrong_kind_is_a_400_that_names_the_field(
    ask: Ask, title: str, name: str, kind: str
) -> None:
    wrong: Any = {"wrong": []} if "number" in kind or "integer" in kind else 0.5
    reply = ask(title, {name: wrong})
    assert names_field(reply, name), reply.text


@pytest.mark.parametrize(("title", "name", "mark"), refused)
def test_what_the_page_says_is_refused_is_a_400_that_names_the_field(
    ask: Ask, title: str, name: str, mark: str
) -> None:
    reply = ask(title, {name: {"some": "thing"}})
    assert names_field(reply, name), reply.text
