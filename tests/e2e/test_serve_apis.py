"""The official clients of four APIs against one `headrace serve`, unchanged, with a real model."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import ollama
import openai
import pytest

from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
key = "operators-key"
question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
tools: list[Any] = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name in ("get_weather", "get_time")
]


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    with ServeProcess.start(
        model, "--kv-tokens", "8192", environment={"HEADRACE_API_KEY": key}
    ) as process:
        yield process


@pytest.fixture
def chat(served: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(served: ServeProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def llama(served: ServeProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=served.url, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


@pytest.fixture
def web(served: ServeProcess) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


# Chat and text completions.


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_valid_and_its_stream_adds_up_to_it(
    chat: openai.OpenAI, parallel: bool
) -> None:
    options: dict[str, Any] = {
        "model": model,
        "messages": question,
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": parallel,
        "temperature": 0,
        "max_tokens": 120,
    }
    (choice,) = chat.chat.completions.create(**options).choices
    calls = choice.message.tool_calls or []
    assert choice.finish_reason in ("tool_calls", "length") if parallel else "tool_calls"
    assert len(calls) >= 1 if parallel else len(calls) == 1
    first = calls[0]
    assert first.type == "function"
    assert first.function.name in ("get_weather", "get_time")
    assert set(json.loads(first.function.arguments)) == {"city"}
    names: list[str] = []
    arguments: list[str] = []
    endings: list[str] = []
    for chunk in chat.chat.completions.create(**options, stream=True):
        (streamed,) = chunk.choices
        endings += [streamed.finish_reason] if streamed.finish_reason else []
        for part in streamed.delta.tool_calls or []:
            assert part.function is not None
            if part.function.name:
                names.append(part.function.name)
                arguments.append("")
            arguments[part.index] += part.function.arguments or ""
    assert endings == [choice.finish_reason]
    assert names == [call.function.name for call in calls if call.type == "function"]
    assert arguments == [call.function.arguments for call in calls if call.type == "function"]


def test_a_named_call_is_of_that_function_and_goes_on_to_an_answer(chat: openai.OpenAI) -> None:
    (choice,) = chat.chat.completions.create(
        model=model,
        messages=question,
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "get_time"}},
        max_tokens=80,
        temperature=0,
    ).choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_time"
    result = {"role": "tool", "tool_call_id": call.id, "content": "12:00"}
    after = chat.chat.completions.create(
        model=model,
        messages=[*question, choice.message.model_dump(exclude_none=True), result],  # type: ignore[list-item]
        tools=tools,
        max_tokens=8,
    )
    answer = after.choices[0].message
    assert answer.content or answer.tool_calls  # small models like to call again


# OpenAI's responses.


def test_responses_are_kept_chained_and_forgotten(chat: openai.OpenAI) -> None:
    first = chat.responses.create(
        model=model, input="Say hi.", instructions="Be brief.", max_output_tokens=8, temperature=0
    )
    assert first.output_text
    assert chat.responses.retrieve(first.id).output_text == first.output_text
    second = chat.responses.create(
        model=model, input="Again.", previous_response_id=first.id, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    said = chat.responses.input_items.list(second.id).data
    assert len(said) == 3
    chat.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        chat.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        chat.responses.create(model=model, input="x", previous_response_id=first.id)
    assert gone.value.param == "previous_response_id"
    unkept = chat.responses.create(model=model, input="x", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        chat.responses.retrieve(unkept.id)


def test_a_streamed_response_says_the_same_as_the_whole_one(chat: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": model,
        "input": [{"role": "user", "content": "Say hi."}],
        "max_output_tokens": 200,
        "temperature": 0,
    }
    whole = chat.responses.create(**options)
    assert whole.status == "completed"
    events = list(chat.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert chat.responses.retrieve(last.response.id).output_text == whole.output_text


def test_a_response_calls_a_function(chat: openai.OpenAI) -> None:
    response = chat.responses.create(
        model=model,
        input="What is the weather in Paris?",
        tools=[{"type": "function", "name": "get_weather", "parameters": schema, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    (call,) = response.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city"}
    after = chat.responses.create(
        model=model,
        previous_response_id=response.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        max_output_tokens=8,
    )
    assert after.output_text


def test_a_background_response_is_cancelled(chat: openai.OpenAI) -> None:
    begun = chat.responses.create(
        model=model, input="Count to ten thousand.", background=True, max_output_tokens=4000
    )
    assert begun.status == "in_progress"
    assert chat.responses.cancel(begun.id).status == "cancelled"
    assert chat.responses.retrieve(begun.id).status == "cancelled"


# Anthropic's messages.


def test_a_message_is_answered_and_its_stream_says_the_same(claude: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": 12,
        "messages": question,
        "system": "Be brief.",
        "extra_body": {"temperature": 0},
        "stop_sequences": ["never said"],
    }
    message = claude.messages.create(**options)
    (block,) = message.content
    assert block.type == "text"
    assert message.stop_reason in ("max_tokens", "end_turn")
    with claude.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert final.stop_reason == message.stop_reason
    assert final.usage.output_tokens == message.usage.output_tokens
    counted = claude.messages.count_tokens(
        model=model, messages=question, system="Be brief."
    ).input_tokens
    cached = final.usage.cache_read_input_tokens or 0
    assert counted == final.usage.input_tokens + cached


def test_a_message_stops_at_a_sequence(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model=model,
        max_tokens=60,
        messages=question,
        stop_sequences=["e"],
        extra_body={"temperature": 0},
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "e")


def test_a_message_uses_a_tool_and_takes_its_result(claude: anthropic.Anthropic) -> None:
    offered: list[Any] = [{"name": "get_weather", "input_schema": schema}]
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": 100,
        "messages": question,
        "tools": offered,
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "extra_body": {"temperature": 0},
    }
    message = claude.messages.create(**options)
    (block,) = message.content
    assert message.stop_reason == "tool_use"
    assert block.type == "tool_use"
    assert set(block.input) == {"city"}
    with claude.messages.stream(**options) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    turns: list[Any] = [
        *question,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    after = claude.messages.create(model=model, max_tokens=8, messages=turns, tools=offered)
    assert after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0) > 40


def test_errors_are_anthropics_own(claude: anthropic.Anthropic, served: ServeProcess) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="gpt-17", max_tokens=5, messages=question)
    assert isinstance(unknown.value.body, dict)
    assert unknown.value.body["type"] == "error"
    with pytest.raises(anthropic.BadRequestError) as negative:
        claude.messages.create(model=model, max_tokens=-5, messages=question)
    assert "max_tokens" in str(negative.value)
    stranger = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model=model, max_tokens=5, messages=question)


# Ollama's API.


def test_ollamas_client_chats_generates_and_lists(llama: ollama.Client) -> None:
    options = {"num_predict": 8, "temperature": 0}
    whole = llama.chat(model=model, messages=question, options=options)
    assert whole.done
    assert whole.eval_count == 8
    lines = list(llama.chat(model=model, messages=question, options=options, stream=True))
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert [bool(line.done) for line in lines] == [False] * (len(lines) - 1) + [True]
    continued = llama.generate(
        model=f"{model}:latest", prompt="One, two, three,", raw=True, options=options
    )
    assert "four" in (continued.response or "")
    framed = llama.generate(model=model, prompt="Say hi.", system="Be brief.", options=options)
    assert framed.response
    (listed,) = llama.list().models
    assert listed.model == model
    assert listed.details is not None
    assert listed.details.quantization_level == "Q4_1"
    assert "tools" in (llama.show(model).capabilities or [])
    assert [entry.model for entry in llama.ps().models] == [model]
    with pytest.raises(ollama.ResponseError) as unknown:
        llama.chat(model="gpt-17", messages=question)
    assert unknown.value.status_code == 404


def test_ollamas_formats_are_kept(llama: ollama.Client) -> None:
    answer = llama.chat(
        model=model,
        messages=question,
        format=schema,
        options={"num_predict": 60, "temperature": 0},
    )
    assert set(json.loads(answer.message.content or "")) == {"city"}


# Tokens, models, operation.


def test_tokens_go_there_and_back(web: httpx2.Client) -> None:
    text = "Ahoj, světe 🌊"
    made = web.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    assert web.post("/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": text}
    conversation = {"model": model, "messages": question}
    prompt = web.post("/apply-template", json=conversation).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    tokens = web.post("/tokenize", json=conversation).json()["tokens"]
    assert web.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == prompt


def test_the_models_card_tells_what_is_honoured(web: httpx2.Client) -> None:
    (card,) = web.get("/v1/models").json()["data"]
    assert card["max_model_len"] == 8192
    assert card["quantization"] == "Q4_1"
    assert card["modalities"] == ["text"]
    assert {"n", "tools", "echo", "prompt_logprobs"} <= set(card["supported_parameters"])
    assert "suffix" not in card["supported_parameters"]  # this model has no tokens for it


def test_a_wrong_method_is_405_and_says_which_are_right(web: httpx2.Client) -> None:
    answer = web.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"
