"""OpenAI's Responses API as requests: what clients send, and the chat request it becomes.

A request's input is a list of items. What came before, by `previous_response_id`, is items too:
the earlier request's and its answer's, kept by whoever serves (`conversation_of`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.base.errors import InvalidRequest
from headrace.protocol.parsing import decode_request
from headrace.protocol.requests import Name, TokenCount
from headrace.protocol.tools import FunctionName, tools_max

Chat = dict[str, object]


class InputText(msgspec.Struct, frozen=True, tag="input_text"):
    """Text of a user or an operator."""

    text: str


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    """Text of the model."""

    text: str
    annotations: list[Any] = []


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The model's refusal."""

    refusal: str


class InputImage(msgspec.Struct, frozen=True, tag="input_image"):
    """An image, for models that take them: a data URL, or where it is to be fetched."""

    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ThoughtText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    """What the model thought."""

    text: str


Part = InputText | OutputText | Refusal | InputImage


class MessageItem(msgspec.Struct, frozen=True, tag="message"):
    """One turn; further fields are what answers carry."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class CallItem(msgspec.Struct, frozen=True, tag="function_call"):
    """A call that the model made."""

    call_id: Name
    name: str
    arguments: str
    id: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET


class CallOutputItem(msgspec.Struct, frozen=True, tag="function_call_output"):
    """What a call gave."""

    call_id: Name
    output: str | list[InputText]
    id: str | UnsetType | None = UNSET


class ThoughtItem(msgspec.Struct, frozen=True, tag="reasoning"):
    """What the model thought before it answered."""

    content: list[ThoughtText] | None = None
    summary: list[Any] = []
    id: str | UnsetType = UNSET


Item = MessageItem | CallItem | CallOutputItem | ThoughtItem


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that is offered."""

    type: Literal["function"]
    name: FunctionName
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class FunctionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much to think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # thoughts come in full


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Extras of a stream."""

    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | list[Item] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=tools_max)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None  # kept for later requests unless false
    background: bool | None = None  # answered at once; the answer is asked for later
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    truncation: Literal["disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None


_request = msgspec.json.Decoder(ResponsesRequest)

unsupported_fields: dict[str, tuple[object, ...]] = {
    "conversation": (),
    "context_management": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "top_logprobs": (0,),
}
ignored_fields = frozenset({"prompt_cache_retention", "prompt_cache_options"})


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    # Clients leave the type of plain messages out.
    request = decode_request(
        _with_item_types(body), _request, ResponsesRequest, unsupported_fields, ignored_fields
    )
    if not request.input and request.previous_response_id is None:
        raise InvalidRequest("The input is empty; send a text or items.", param="input")
    if request.background and request.stream:
        raise InvalidRequest(
            "A background response is asked for later; leave stream out.", param="stream"
        )
    if request.background and request.store is False:
        raise InvalidRequest(
            "A background response is stored until it is asked for; leave store out.",
            param="store",
        )
    return request


def input_items(request: ResponsesRequest) -> list[Item]:
    """The request's own input as items."""
    if isinstance(request.input, str):
        return [MessageItem("user", request.input)] if request.input else []
    return request.input


class ListedItem(msgspec.Struct, frozen=True):
    """An item in a list; one that came without an id has one of its response and place."""

    id: str
    fields: dict[str, object]


def listed_items(response_id: str, items: Sequence[Item]) -> list[ListedItem]:
    """Everything that a response answers, in its order, as clients list it."""
    body = response_id.partition("_")[2]
    values = msgspec.json.decode(msgspec.json.encode(items), type=list[dict[str, object]])
    found = []
    for number, fields in enumerate(values):
        item_id = str(fields.get("id") or f"item_{body}_{number}")
        found.append(ListedItem(item_id, {**fields, "id": item_id}))
    return found


def items_of_output(output: Sequence[object]) -> list[Item]:
    """A response's output as items of a later input."""
    return msgspec.convert(output, list[Item])


def chat_of_responses(request: ResponsesRequest, earlier: Sequence[Item]) -> bytes:
    """The chat request that asks for the same, after the `earlier` items, as a body."""
    turns: list[Chat] = []
    if request.instructions:
        turns.append({"role": "developer", "content": request.instructions})
    for item in (*earlier, *input_items(request)):
        _add_turn(turns, item)
    chat: Chat = {"model": request.model, "messages": [t for t in turns if not _is_bare(t)]}
    for name, value in (
        ("max_completion_tokens", request.max_output_tokens),
        ("temperature", request.temperature),
        ("top_p", request.top_p),
        ("parallel_tool_calls", request.parallel_tool_calls if request.tools else None),
        ("reasoning_effort", request.reasoning.effort if request.reasoning else None),
        ("response_format", _format(request.text)),
        ("user", request.user),
    ):
        if value is not None:
            chat[name] = value
    if request.tools:
        chat["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None and (request.tools or request.tool_choice != "auto"):
        chat["tool_choice"] = _choice(request.tool_choice)
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(chat)


def _add_turn(turns: list[Chat], item: Item) -> None:
    """Calls and thoughts of one answer are one assistant's turn."""
    if isinstance(item, CallOutputItem):
        output = item.output
        text = output if isinstance(output, str) else "".join(part.text for part in output)
        turns.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    elif isinstance(item, MessageItem) and item.role != "assistant":
        turns.append({"role": item.role, "content": _content(item.content)})
    else:
        turn = turns[-1] if turns and turns[-1]["role"] == "assistant" else None
        if turn is None or (isinstance(item, MessageItem) and turn["content"]):
            turn = {"role": "assistant", "content": ""}
            turns.append(turn)
        _add_to_answer(turn, item)


def _add_to_answer(turn: Chat, item: MessageItem | CallItem | ThoughtItem) -> None:
    if isinstance(item, MessageItem):
        turn["content"] = _text(item.content)
    elif isinstance(item, CallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        calls = turn.setdefault("tool_calls", [])
        assert isinstance(calls, list), "only calls are put there"
        calls.append(call)
    elif item.content:
        turn["reasoning_content"] = "".join(part.text for part in item.content)


def _is_bare(turn: Chat) -> bool:
    """An answer that was a thought alone, because it was cut off."""
    return turn["role"] == "assistant" and not turn["content"] and "tool_calls" not in turn


def _content(content: str | list[Part]) -> object:
    """Text alone as one text; with images as parts in their order."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [_chat_part(part) for part in content]


def _chat_part(part: Part) -> Chat:
    if isinstance(part, InputImage):
        image: Chat = {"url": part.image_url}
        if part.detail is not None:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": _text([part])}


def _text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else part.text
        for part in content
        if not isinstance(part, InputImage)
    )


def _tool(tool: FunctionTool) -> Chat:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    kept = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": kept}


def _choice(choice: str | FunctionChoice) -> object:
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _format(text: TextConfig | None) -> Chat | None:
    wanted = text.format if text else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if wanted.schema is None:
        raise InvalidRequest("A json_schema format needs its schema.", param="text.format.schema")
    schema = {"name": wanted.name or "answer", "schema": wanted.schema}
    return {"type": "json_schema", "json_schema": schema}


def _with_item_types(body: bytes) -> bytes:
    """The same body with `"type": "message"` where an item has a role and no type."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        items = msgspec.json.decode(fields["input"], type=list[dict[str, msgspec.Raw]])
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError):
        return body  # a text, or wrong, which the parser says better
    if all("type" in item for item in items):
        return body
    typed = [
        {"type": "message", **item} if "role" in item and "type" not in item else item
        for item in items
    ]
    return msgspec.json.encode({**fields, "input": typed})
