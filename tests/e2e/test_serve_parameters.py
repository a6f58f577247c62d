"""What parameters do to the answers of a real model, asked for with the official client."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
count_up: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Count from one to twenty in words."}
]
person_schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    with ServeProcess.start(model, "--kv-tokens", "8192") as process:
        yield process


@pytest.fixture
def client(served: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def web(served: ServeProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, timeout=60) as client:
        yield client


def test_log_probabilities_stand_for_the_answers_own_bytes(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a smiling face emoji and 日本."}],
        "temperature": 0,
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 3,
    }
    (choice,) = client.chat.completions.create(**arguments).choices
    assert choice.logprobs is not None
    listed = choice.logprobs.content or []
    sent = b"".join(bytes(token.bytes or []) for token in listed)
    assert sent.decode(errors="replace") == choice.message.content
    for token in listed:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].bytes == token.bytes  # greedy takes the likeliest
        assert 0 >= token.logprob == token.top_logprobs[0].logprob >= token.top_logprobs[2].logprob
    streamed: list[Any] = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed += [] if logprobs is None else logprobs.content or []
    assert [token.bytes for token in streamed] == [token.bytes for token in listed]
    assert [token.logprob for token in streamed] == [token.logprob for token in listed]


def test_bias_bans_and_penalties_steer_the_answer(client: openai.OpenAI) -> None:
    def text(**fields: Any) -> str:
        completion = client.completions.create(
            model=model, prompt="One, two, three,", temperature=0, max_tokens=8, **fields
        )
        answer: str = completion.choices[0].text
        return answer

    plain = client.completions.create(
        model=model, prompt="One, two, three,", temperature=0, max_tokens=8, logprobs=0
    ).choices[0]
    assert plain.logprobs is not None
    assert "".join(plain.logprobs.tokens or []) == plain.text
    assert " four" in plain.text
    assert " four" not in text(extra_body={"bad_words": ["four"]})
    assert text(logit_bias={"100": 100}, frequency_penalty=0) == text(
        extra_body={"allowed_token_ids": [100]}
    )
    repeated = text(logit_bias={"100": 20}, frequency_penalty=2, presence_penalty=2)
    assert repeated != text(logit_bias={"100": 100})
    assert text(extra_body={"repetition_penalty": 5.0}) != plain.text


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_an_answer_follows_its_json_schema(client: openai.OpenAI, temperature: float) -> None:
    arguments: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Describe a person."}],
        "temperature": temperature,
        "seed": 3,
        "max_tokens": 120,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": person_schema},
        },
    }
    (choice,) = client.chat.completions.create(**arguments).choices
    assert choice.finish_reason == "stop"
    person = json.loads(choice.message.content or "")
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 99
    chunks = client.chat.completions.create(**arguments, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice.message.content


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("guided_choice", ["violet", 'ultra"marine'], ("violet", 'ultra"marine')),
        ("guided_regex", "[0-9]{3}", None),
        ("guided_grammar", 'start: "x" "y"+ "z"', None),
    ],
)
def test_an_answer_follows_its_choice_regex_or_grammar(
    client: openai.OpenAI, field: str, value: object, wanted: tuple[str, ...] | None
) -> None:
    completion = client.completions.create(
        model=model,
        prompt="The answer is",
        max_tokens=40,
        seed=1,
        logit_bias={},
        extra_body={field: value},
    )
    text = completion.choices[0].text
    if wanted is not None:
        assert text in wanted
    elif field == "guided_regex":
        assert re.fullmatch("[0-9]{3}", text)
    else:
        assert re.fullmatch("xy+z?", text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_regex", "[0-9"),
        ("guided_grammar", "start: nowhere"),
        ("guided_json", {"type": "no-such-type"}),
    ],
)
def test_a_bad_grammar_fails_its_own_request_by_name(
    client: openai.OpenAI, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="x", extra_body={field: value})
    assert refused.value.param == field
    ordinary = client.completions.create(model=model, prompt="x", max_tokens=2, temperature=0)
    assert ordinary.choices[0].finish_reason == "length"


def test_dry_turns_away_from_a_repetition_and_is_repeatable(client: openai.OpenAI) -> None:
    def text(**extra: object) -> str:
        completion = client.completions.create(
            model=model,
            prompt="red green blue, red green blue, red green blue, red green",
            temperature=0,
            max_tokens=6,
            extra_body=extra,
        )
        return completion.choices[0].text

    dry = {"dry_multiplier": 20, "dry_sequence_breakers": ["."]}
    assert text().startswith(" blue")
    assert not text(**dry).startswith(" blue")
    assert text(**dry) == text(**dry)
    assert text(dry_multiplier=20, dry_sequence_breakers=[" green"]) == text()


def test_a_request_that_leaves_no_token_is_the_callers_fault(client: openai.OpenAI) -> None:
    end_of_turn = 2
    with pytest.raises(openai.BadRequestError, match="No token was allowed"):
        client.completions.create(
            model=model,
            prompt="Hello",
            extra_body={"allowed_token_ids": [end_of_turn], "min_tokens": 2},
        )
    client.completions.create(model=model, prompt="Hello", max_tokens=1)


def test_several_answers_are_the_same_streamed_and_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": model,
        "messages": count_up,
        "n": 3,
        "seed": 7,
        "max_tokens": 8,
    }
    whole = client.chat.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    streamed = ["", "", ""]
    endings: list[list[str]] = [[], [], []]
    usage = None
    for chunk in client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            endings[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert streamed == texts
    assert [len(reasons) for reasons in endings] == [1, 1, 1]
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_several_prompts_are_answered_in_order_with_the_best_of_their_answers(
    client: openai.OpenAI,
) -> None:
    prompts = ["One, two, three,", "Monday, Tuesday, Wednesday, Thursday,"]
    completion = client.completions.create(
        model=model, prompt=prompts, n=1, best_of=2, max_tokens=4, temperature=0.3, seed=1
    )
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert "four" in completion.choices[0].text
    assert "day" in completion.choices[1].text
    assert completion.usage is not None
    assert 4 <= completion.usage.completion_tokens <= 16


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_an_echo_has_the_prompts_log_probabilities(client: openai.OpenAI, max_tokens: int) -> None:
    options: dict[str, Any] = {
        "model": model,
        "prompt": "One, two,",
        "echo": True,
        "logprobs": 1,
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    (choice,) = client.completions.create(**options).choices
    assert choice.text.startswith("One, two,")
    listed = choice.logprobs
    assert listed is not None
    assert listed.tokens is not None
    assert listed.token_logprobs is not None
    assert "".join(listed.tokens) == choice.text
    assert listed.token_logprobs[0] is None
    assert all(value <= 0 for value in listed.token_logprobs[1:])
    assert listed.text_offset == [
        len("".join(listed.tokens[:index])) for index in range(len(listed.tokens))
    ]
    streamed = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == choice.text


def test_stop_strings_special_tokens_and_token_ids_are_shown_on_request(
    client: openai.OpenAI,
) -> None:
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 20}
    (cut,) = client.completions.create(
        **options,
        prompt="One, two, three,",
        stop=", five",
        extra_body={"include_stop_str_in_output": True, "return_token_ids": True},
    ).choices
    assert cut.text.endswith(", five")
    assert cut.finish_reason == "stop"
    extra = cut.model_extra or {}
    assert extra["stop_reason"] == ", five"
    assert len(extra["prompt_token_ids"]) == 6
    assert len(extra["token_ids"]) >= 3


def test_a_truncated_prompt_says_what_was_dropped(web: httpx2.Client) -> None:
    body = {
        "model": model,
        "prompt": "One, two, three, four, five, six,",
        "max_tokens": 1,
        "truncate_prompt_tokens": 4,
    }
    answer = web.post("/v1/completions", json=body)
    assert answer.json()["usage"]["prompt_tokens"] == 4
    assert answer.headers["x-headrace-dropped-prompt-tokens"] == "8"


def test_typical_sampling_and_xtc_are_repeatable_and_change_the_answer(
    client: openai.OpenAI,
) -> None:
    def text(**extra: object) -> str:
        completion = client.completions.create(
            model=model, prompt="Once upon a time", seed=3, max_tokens=24, extra_body=extra
        )
        return completion.choices[0].text

    plain = text()
    for fields in ({"typical_p": 0.2}, {"xtc_probability": 1, "xtc_threshold": 0.05}):
        assert text(**fields) == text(**fields) != plain
    both = {"xtc_probability": 1, "dry_multiplier": 2}
    assert text(**both) == text(**both)
    assert text(typical_p=1, xtc_probability=0) == plain


def test_a_model_without_the_tokens_cannot_fill_a_gap(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="fill in the middle") as caught:
        client.completions.create(model=model, prompt="def f(", suffix="return 1")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_text_is_free_but_for_its_structural_tags(
    client: openai.OpenAI, temperature: float
) -> None:
    number = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}}
    tags = {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [
            {
                "begin": "<n>",
                "content": {
                    "type": "json_schema",
                    "json_schema": {**number, "required": ["n"], "additionalProperties": False},
                },
                "end": "</n>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": True,
    }
    completion = client.chat.completions.create(
        model=model,
        messages=count_up,
        temperature=temperature,
        seed=5,
        max_tokens=200,
        logit_bias={"44": 20},  # "<", so that a tag begins at once
        extra_body={"response_format": {"type": "structural_tag", "format": tags}},
    )
    text = completion.choices[0].message.content or ""
    assert completion.choices[0].finish_reason == "stop"
    assert re.fullmatch(r'(?s)[^<]*<n>\s*\{\s*"n"\s*:\s*[123]\s*\}\s*</n>', text)
