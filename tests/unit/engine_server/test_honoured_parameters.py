"""Every parameter that requests may have is honoured: each is shown here, or names what shows it.

A field that is added to a request and to none of these tables fails the first test.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.messages import Submit
from headrace.engine_server.prompts import Prompt, PromptReader
from headrace.engine_server.submission import submission
from headrace.protocol.parsing import (
    parse_chat_request,
    parse_completion_request,
    supported_parameters,
    unsupported_fields,
)
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.tool_parsers import hermes
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.model_file import open_model

tests = Path(__file__).parents[2]
schema = {"type": "object"}
tool = {"type": "function", "function": {"name": "f", "parameters": schema}}

# What a field changes of the engine's request: the field, a value, and what it becomes there.
to_the_engine: list[tuple[str, Any, dict[str, Any]]] = [
    ("temperature", 0.5, {"temperature": 0.5}),
    ("top_p", 0.4, {"top_p": 0.4}),
    ("top_k", 7, {"top_k": 7}),
    ("top_k", -1, {"top_k": 0}),
    ("min_p", 0.3, {"min_p": 0.3}),
    ("typical_p", 0.6, {"typical_p": 0.6}),
    ("xtc_threshold", 0.2, {"xtc_threshold": 0.2}),
    ("xtc_probability", 0.5, {"xtc_probability": 0.5}),
    ("seed", 9, {"seed": 9}),
    ("seed", -1, {"seed": 2**64 - 1}),
    ("max_tokens", 3, {"max_tokens": 3}),
    ("min_tokens", 2, {"min_tokens": 2}),
    ("stop", ["a", "b"], {"stop_strings": ("a", "b")}),
    ("stop_token_ids", [7, 5], {"stop_token_ids": [5, 7, 256]}),
    ("ignore_eos", True, {"ignore_eos": True, "stop_token_ids": []}),
    ("repetition_penalty", 1.3, {"repetition_penalty": 1.3}),
    ("frequency_penalty", 0.7, {"frequency_penalty": 0.7}),
    ("presence_penalty", -0.7, {"presence_penalty": -0.7}),
    ("logit_bias", {"5": -100, "6": 3.5}, {"logit_bias": ((5, -100), (6, 3.5))}),
    ("allowed_token_ids", [4, 2], {"allowed_token_ids": (4, 2)}),
    ("bad_words", ["no"], {"bad_words": ((110, 111), (32, 110, 111))}),
    ("dry_multiplier", 0.8, {"dry_multiplier": 0.8, "dry_breakers": (1,)}),
    ("n", 3, {"choice_count": 3}),
    ("prompt_logprobs", 2, {"prompt_logprobs": 2}),
    ("priority", 4, {"priority": 4}),
    ("deadline_ms", 1500, {"timeout_s": 1.5}),
    ("guided_json", schema, {"grammar": ("json_schema", '{"type":"object"}')}),
    ("guided_regex", "a+", {"grammar": ("regex", "a+")}),
    ("guided_grammar", 'start: "a"', {"grammar": ("lark", 'start: "a"')}),
    ("guided_choice", ["a", "b"], {"grammar": ("lark", 'start: "a" | "b"')}),
    ("response_format", {"type": "json_object"}, {"grammar": ("json_schema", '{"type":"object"}')}),
    ("structured_outputs", {"regex": "b"}, {"grammar": ("regex", "b")}),
]
of_completions: list[tuple[str, Any, dict[str, Any]]] = [
    ("logprobs", 2, {"top_logprobs": 2}),
    ("best_of", 3, {"choice_count": 3}),
]
with_another: dict[str, dict[str, Any]] = {  # what a field needs beside it
    "dry_base": {"dry_multiplier": 1, "dry_base": 2},
    "dry_allowed_length": {"dry_multiplier": 1, "dry_allowed_length": 4},
    "dry_sequence_breakers": {"dry_multiplier": 1, "dry_sequence_breakers": ["x", "y"]},
}

# What other tests show.
shown_elsewhere = {
    "best_of": "e2e/test_serve_parameters.py::test_several_prompts_are_answered_in_order_with",
    "chat_template_kwargs": "unit/engine_server/test_turns.py::test_efforts_and_callers_variables",
    "echo": "e2e/test_serve_parameters.py::test_an_echo_has_the_prompts_log_probabilities",
    "include_reasoning": "property/test_answer_pipeline.py::test_thoughts_can_be_left_out",
    "include_stop_str_in_output": "e2e/test_serve_parameters.py::test_stop_strings_special_tokens",
    "kv_transfer_params": "unit/engine_server/test_kv_exchange.py::test_a_split_request_is",
    "logprobs": "e2e/test_serve_parameters.py::test_log_probabilities_stand_for_the_answers",
    "messages": "e2e/test_serve_openai.py::test_a_chat_is_answered",
    "model": "unit/engine_server/test_app.py::test_what_cannot_succeed_is_refused_in_openai_shape",
    "parallel_tool_calls": "e2e/test_serve_apis.py::test_a_required_call_is_valid_and_its_stream",
    "prompt": "e2e/test_serve_openai.py::test_a_completion_continues_its_prompt",
    "reasoning_budget": "unit/engine_server/test_dialect.py::test_a_budget_names_the_tokens",
    "reasoning_effort": "unit/engine_server/test_turns.py::test_efforts_and_callers_variables",
    "return_token_ids": "e2e/test_serve_parameters.py::test_stop_strings_special_tokens",
    "skip_special_tokens": "e2e/test_serve_parameters.py::test_stop_strings_special_tokens",
    "stop": "unit/engine_server/test_answers.py::test_a_stop_string_ends_both_kinds_of_answer",
    "stream": "unit/engine_server/test_answers.py::test_streamed_text_and_usage_equal",
    "stream_options": "unit/engine_server/test_answers.py::test_streamed_text_and_usage_equal",
    "suffix": "unit/tokenizer/test_fill_in_middle.py::test_a_gap_is_framed_by_the_familys_tokens",
    "tool_choice": "e2e/test_serve_apis.py::test_a_named_call_is_of_that_function",
    "tools": "e2e/test_serve_apis.py::test_a_required_call_is_valid_and_its_stream",
    "truncate_prompt_tokens": "e2e/test_serve_parameters.py::test_a_truncated_prompt_says_what",
    "top_logprobs": "e2e/test_serve_parameters.py::test_log_probabilities_stand_for_the_answers",
}
# For the caller's own records, as OpenAI has them: they change nothing.
for_records_only = {"user", "metadata", "safety_identifier", "prompt_cache_key"}


def test_every_parameter_is_in_one_of_the_tables() -> None:
    shown = {name for name, _, _ in [*to_the_engine, *of_completions]}
    shown |= {"max_completion_tokens", *with_another, *shown_elsewhere, *for_records_only}
    assert set(supported_parameters) - shown == set()


@pytest.mark.parametrize("name", sorted(shown_elsewhere))
def test_what_is_shown_elsewhere_is_there(name: str) -> None:
    file, _, test = shown_elsewhere[name].partition("::")
    assert f"def {test}" in (tests / file).read_text()


@pytest.fixture(scope="session")
def tokenizer(byte_model: Path) -> Tokenizer:
    with open_model(byte_model) as file:
        return Tokenizer.from_gguf_metadata(file.metadata)


Asked = ChatRequest | CompletionRequest


async def sent(request: Asked, tokenizer: Tokenizer) -> tuple[Submit, list[Prompt]]:
    dialect = Dialect(hermes, reasoning_formats["think"], True, frozenset())
    reader = PromptReader()
    try:
        prompts = await reader.read(request, tokenizer, dialect, 4096)
    finally:
        reader.close()
    submit = submission(
        request,
        prompts,
        request_id="r",
        tokenizer=tokenizer,
        dialect=dialect,
        context_length=4096,
        vocab_size=tokenizer.vocab_size,
        find_breakers=lambda texts: (len(texts),) if len(texts) < 3 else (1,),
    )
    return submit, prompts


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "seed": 1, **fields}
    return parse_chat_request(json.dumps(body).encode(), trusted=True)


def completion(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "prompt": "hello", "seed": 1, **fields}
    return parse_completion_request(json.dumps(body).encode(), trusted=True)


def check(submit: Submit, plain: Submit, wanted: dict[str, Any]) -> None:
    """The request differs from one without the field in what is wanted, and in nothing else."""
    for field, value in wanted.items():
        found = getattr(submit, field)
        if field == "grammar":
            found = (found.kind, found.text)
        assert found == value, field
    unchanged = {field: getattr(plain, field) for field in wanted}
    assert msgspec.structs.replace(submit, **unchanged) == plain


@pytest.mark.parametrize(("name", "value", "wanted"), to_the_engine)
async def test_a_parameter_reaches_the_engine(
    tokenizer: Tokenizer, name: str, value: Any, wanted: dict[str, Any]
) -> None:
    for make in (chat, completion):
        plain, _ = await sent(make(), tokenizer)
        submit, _ = await sent(make(**{name: value}), tokenizer)
        check(submit, plain, wanted)


@pytest.mark.parametrize(("name", "value", "wanted"), of_completions)
async def test_a_parameter_of_completions_reaches_the_engine(
    tokenizer: Tokenizer, name: str, value: Any, wanted: dict[str, Any]
) -> None:
    plain, _ = await sent(completion(), tokenizer)
    submit, _ = await sent(completion(**{name: value}), tokenizer)
    check(submit, plain, wanted)


async def test_the_newer_name_of_the_output_limit_reaches_the_engine(tokenizer: Tokenizer) -> None:
    plain, _ = await sent(chat(), tokenizer)
    submit, _ = await sent(chat(max_completion_tokens=3), tokenizer)
    check(submit, plain, {"max_tokens": 3})


@pytest.mark.parametrize("name", sorted(with_another))
async def test_a_parameter_that_needs_another_changes_what_that_alone_asks_for(
    tokenizer: Tokenizer, name: str
) -> None:
    fields = with_another[name]
    alone = {field: value for field, value in fields.items() if field != name}
    for make in (chat, completion):
        without, _ = await sent(make(**alone), tokenizer)
        submit, _ = await sent(make(**fields), tokenizer)
        assert submit != without


@pytest.mark.parametrize("name", sorted(unsupported_fields))
@pytest.mark.parametrize("parse", [parse_chat_request, parse_completion_request])
def test_what_is_not_supported_is_refused_by_name(name: str, parse: Any) -> None:
    kind = ChatRequest if parse is parse_chat_request else CompletionRequest
    if name in kind.__struct_fields__:
        return
    prompt = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    body = {key: value for key, value in prompt.items() if key in kind.__struct_fields__}
    with pytest.raises(InvalidRequest) as refused:
        parse(json.dumps({"model": "m", **body, name: "something"}).encode())
    assert refused.value.param == name
