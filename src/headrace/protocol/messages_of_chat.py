"""A chat request as Anthropic's Messages API takes it, for models that are reached by that alone.

The way back is `chat_of_messages`. What that API has no word for is refused by the field's name.

    system and developer turns   `system`, in their order
    tool turns                   `tool_result` blocks of a user's turn
    turns of one speaker in row  one turn
    earlier thoughts             left out: without their signature the API takes none
"""

from typing import Any

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.requests import ChatMessage, ChatRequest, ImagePart
from headrace.protocol.tools import NamedToolChoice, ToolCall

Fields = dict[str, Any]

output_tokens_default = 4096  # the API wants a limit; what the caller left open is this
data_prefix = "data:"
# Fields with the values that ask for nothing there.
without_words: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "seed": (),
    "min_tokens": (0,),
    "min_p": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "repetition_penalty": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_grammar": (),
    "guided_choice": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "prompt_logprobs": (),
    "logprobs": (False,),
    "chat_template_kwargs": ({},),
}

_decoder = msgspec.json.Decoder(ChatRequest)


def messages_of_chat(body: bytes) -> bytes:
    """The Messages request that asks for the same; InvalidRequest names what cannot be asked."""
    try:
        chat = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request is malformed: {error}.") from None
    for name, nothing in without_words.items():
        value = getattr(chat, name)
        if value is not None and value not in nothing:
            raise InvalidRequest(f"{name} is not offered for this model.", param=name)
    fields: Fields = {
        "model": chat.model,
        "max_tokens": chat.output_limit or output_tokens_default,
        "messages": _turns(chat.messages),
    }
    system = "\n\n".join(turn.text for turn in chat.messages if turn.role in system_roles)
    for name, value in (
        ("system", system or None),
        ("temperature", chat.temperature),
        ("top_p", chat.top_p),
        ("top_k", chat.top_k if chat.top_k and chat.top_k > 0 else None),
        ("stop_sequences", list(chat.stop_strings) or None),
        ("stream", chat.stream),
        ("metadata", None if chat.user is None else {"user_id": chat.user}),
        ("thinking", _thinking(chat)),
        ("output_config", _output_config(chat)),
    ):
        if value is not None:
            fields[name] = value
    if chat.tools:
        fields["tools"] = [_tool(tool.function) for tool in chat.tools]
        fields["tool_choice"] = _tool_choice(chat)
    return msgspec.json.encode(fields)


system_roles = ("system", "developer")


def _turns(messages: list[ChatMessage]) -> list[Fields]:
    turns: list[Fields] = []
    for message in messages:
        if message.role in system_roles:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue  # the API takes no empty turn
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: ChatMessage) -> list[Fields]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id or ""}
        return [{**result, "content": message.text}]
    blocks: list[Fields] = []
    if isinstance(message.content, str):
        if message.content:
            blocks.append({"type": "text", "text": message.content})
    else:
        for part in message.content or ():
            if isinstance(part, ImagePart):
                blocks.append({"type": "image", "source": _image_source(part.image_url.url)})
            elif part.text:
                blocks.append({"type": "text", "text": part.text})
    return blocks + [_call(call) for call in message.tool_calls or ()]


def _image_source(url: str) -> Fields:
    if not url.startswith(data_prefix):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix(data_prefix).partition(",")
    return {"type": "base64", "media_type": head.partition(";")[0], "data": data}


def _call(call: ToolCall) -> Fields:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidRequest(
            f"The arguments of the call {call.id!r} are no JSON object.", param="messages"
        ) from None
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _tool(function: Any) -> Fields:
    tool: Fields = {"name": function.name, "input_schema": function.schema}
    if function.description is not None:
        tool["description"] = function.description
    if function.strict is not None:
        tool["strict"] = function.strict
    return tool


def _tool_choice(chat: ChatRequest) -> Fields:
    choice = chat.tool_choice
    if isinstance(choice, NamedToolChoice):
        chosen: Fields = {"type": "tool", "name": choice.function.name}
    else:
        kinds = {None: "auto", "auto": "auto", "required": "any", "none": "none"}
        chosen = {"type": kinds[choice]}
    if chat.parallel_tool_calls is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return chosen


def _thinking(chat: ChatRequest) -> Fields | None:
    if chat.reasoning_effort == "none" or chat.reasoning_budget == 0:
        return {"type": "disabled"}
    if chat.reasoning_budget is not None:
        return {"type": "enabled", "budget_tokens": chat.reasoning_budget}
    return None


def _output_config(chat: ChatRequest) -> Fields | None:
    config: Fields = {}
    effort = chat.reasoning_effort
    if effort not in (None, "none"):
        config["effort"] = "low" if effort == "minimal" else effort
    wanted = chat.response_format
    if wanted is not None and wanted.type != "text":
        if wanted.type != "json_schema" or wanted.json_schema is None:
            raise InvalidRequest(
                f"A response_format of type {wanted.type!r} is not offered for this model; give "
                "a json_schema.",
                param="response_format",
            )
        config["format"] = {"type": "json_schema", "schema": wanted.json_schema.schema}
    return config or None
