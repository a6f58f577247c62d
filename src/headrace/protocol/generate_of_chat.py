"""A chat as the generate extension of KServe's v2 protocol takes it: a prompt, and fields beside.

The way back is `chat_of_generated`. Triton's backends name their fields apart, so each has a
function here. The extension knows no turns and its servers apply no chat template. Whoever has the
model's writes the prompt; without one turns become lines that begin with their speaker, and an
answer ends where the next one would speak:

    system and developer turns   their text, before everything else
    others                       `User: ...` and `Assistant: ...`
    the end                      `Assistant:`
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.messages_of_chat import output_tokens_default, system_roles, without_words
from headrace.protocol.requests import ChatMessage, ChatRequest

Fields = dict[str, Any]
# Writes turns as the one prompt that a model was trained to continue.
ChatWriter = Callable[[Sequence[Mapping[str, object]]], str]

next_speaker = "\nUser:"
system_role = "system"
speakers = {"user": "User", "assistant": "Assistant"}
# Of what Anthropic's API has no word for, these both backends have.
penalties = frozenset({"seed", "repetition_penalty", "frequency_penalty", "presence_penalty"})
more_of_vllm = frozenset({"min_p", "min_tokens", "stop_token_ids", "ignore_eos"})
# Fields that the extension has no word for at all, with the values that ask for nothing.
never: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "reasoning_budget": (),
}
counts_wanted: Fields = {"return_num_input_tokens": True, "return_num_output_tokens": True}

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


def generate_of_chat_for_tensorrt_llm(
    body: bytes, write: ChatWriter | None = None
) -> tuple[str, bytes]:
    """The path and the body for a model of the TensorRT-LLM backend (`ensemble`, its BLS model).

    InvalidRequest names what cannot be asked there."""
    chat = _read(body, penalties)
    prompt, ends = _prompt(chat.messages, write)
    fields: Fields = {
        "text_input": prompt,
        "max_tokens": chat.output_limit or output_tokens_default,
        "bad_words": "",  # this one and the next must be there in older models
        "stop_words": [*chat.stop_strings, *ends],
        "stream": bool(chat.stream),
        # What is no input of an older model is taken for a parameter, and does nothing.
        "exclude_input_in_output": True,
        **counts_wanted,
        **_given(chat, {}, penalties),
    }
    if chat.seed is not None:
        fields["random_seed"] = chat.seed  # its name in older models
    return _path(chat), _encode(fields)


def generate_of_chat_for_vllm(body: bytes, write: ChatWriter | None = None) -> tuple[str, bytes]:
    """The same for a model of the vLLM backend, which is asked why it ended as well."""
    offered = penalties | more_of_vllm
    chat = _read(body, offered)
    prompt, ends = _prompt(chat.messages, write)
    sampling: Fields = {
        "max_tokens": chat.output_limit or output_tokens_default,
        "stop": [*chat.stop_strings, *ends],
        **_given(chat, {}, offered),
    }
    fields: Fields = {
        "text_input": prompt,
        "stream": bool(chat.stream),
        "sampling_parameters": _encode(sampling).decode(),
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        **counts_wanted,
    }
    return _path(chat), _encode(fields)


def _prompt(messages: list[ChatMessage], write: ChatWriter | None) -> tuple[str, tuple[str, ...]]:
    """The turns as a prompt, and what ends an answer beside the model's own end; InvalidRequest if
    one is more than text."""
    turns = [_turn(message) for message in messages]
    if write is not None:
        return write([{"role": role, "content": text} for role, text in turns]), ()
    system = [text for role, text in turns if role == system_role and text]
    lines = [f"{speakers[role]}: {text}" for role, text in turns if role != system_role]
    return "\n".join([*system, *lines, "Assistant:"]), (next_speaker,)


def _turn(message: ChatMessage) -> tuple[str, str]:
    """Who speaks, and the text."""
    role = system_role if message.role in system_roles else message.role
    if role not in (system_role, *speakers) or message.tool_calls:
        raise InvalidRequest("Tools are not offered for this model.", param="messages")
    if message.image_count:
        raise InvalidRequest("Images are not offered for this model.", param="messages")
    return role, message.text


def _read(body: bytes, offered: frozenset[str]) -> ChatRequest:
    """The chat, if it asks for nothing that the backend has no word for."""
    try:
        chat = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request is malformed: {error}.") from None
    refused = {name: value for name, value in without_words.items() if name not in offered} | never
    for name, nothing in refused.items():
        value = getattr(chat, name)
        if value is not None and value not in nothing:
            raise InvalidRequest(f"{name} is not offered for this model.", param=name)
    wanted = chat.response_format
    if wanted is not None and wanted.type != "text":
        raise InvalidRequest(
            "response_format is not offered for this model.", param="response_format"
        )
    return chat


def _given(chat: ChatRequest, renamed: Mapping[str, str], offered: frozenset[str]) -> Fields:
    """What the caller chose of the fields that both APIs have, by the names there."""
    names = ("temperature", "top_p", *sorted(offered))
    given = {renamed.get(name, name): getattr(chat, name) for name in names}
    if chat.top_k is not None and chat.top_k > 0:
        given["top_k"] = chat.top_k
    return {name: value for name, value in given.items() if value is not None}


def _path(chat: ChatRequest) -> str:
    route = "generate_stream" if chat.stream else "generate"
    return f"/v2/models/{quote(chat.model, safe='')}/{route}"
