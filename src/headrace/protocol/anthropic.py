"""Anthropic's Messages API as requests: what clients send, and the chat request it becomes."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.base.errors import InvalidRequest
from headrace.protocol.parsing import decode_request
from headrace.protocol.requests import Name, StopString, TokenCount, stop_strings_max
from headrace.protocol.tools import FunctionName, tool_calls_max, tools_max

Chat = dict[str, object]


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text; further fields, such as where to cache, ask for nothing here."""

    text: str


class Base64Source(msgspec.Struct, frozen=True, tag="base64", forbid_unknown_fields=True):
    """An image's bytes."""

    media_type: str
    data: str

    @property
    def url(self) -> str:
        """The same as a data URL."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(msgspec.Struct, frozen=True, tag="url", forbid_unknown_fields=True):
    """Where an image is to be fetched."""

    url: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image, for models that take them."""

    source: Base64Source | UrlSource


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call that the model made."""

    id: Name
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: Name
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """What the model thought in an earlier turn."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    """A thought that nobody can read, a model neither."""


Block = (
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
)


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=4 * tool_calls_max)]


class OfferedTool(msgspec.Struct, frozen=True):
    """A function that is offered."""

    name: FunctionName
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None  # custom, or one of Anthropic's own tools
    strict: bool | None = None


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether, and what, to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether thoughts are wanted."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # None: no bound


class OutputFormat(msgspec.Struct, frozen=True):
    """What the answer must look like."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How hard to try, and what the answer must look like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, frozen=True):
    """What the caller notes."""

    user_id: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[OfferedTool], Meta(max_length=tools_max)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: TokenCount
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=stop_strings_max)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


_messages = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)

# Known fields that do nothing here, with the values that ask for nothing. Null always passes.
unsupported_fields: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
ignored_fields = frozenset({"cache_control", "user_profile_id", "workspace_id", "diagnostics"})


def parse_messages_request(body: bytes) -> MessagesRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    request = decode_request(body, _messages, MessagesRequest, unsupported_fields, ignored_fields)
    _check_tools(request)
    return request


def parse_count_request(body: bytes) -> CountRequest:
    """The same for a question of how many tokens a request has."""
    request = decode_request(body, _count, CountRequest, unsupported_fields, ignored_fields)
    _check_tools(request)
    return request


def chat_of_messages(request: MessagesRequest, *, usage_in_every_chunk: bool = False) -> bytes:
    """The chat request that asks for the same, as a body.

    With `usage_in_every_chunk` the stream's first event knows the prompt's tokens, which only some
    engines tell before the end."""
    chat = _chat(request)
    chat["max_tokens"] = request.max_tokens
    for name in ("temperature", "top_p", "top_k"):
        _set(chat, name, getattr(request, name))
    _set(chat, "stop", request.stop_sequences)
    _set(chat, "user", request.metadata.user_id if request.metadata else None)
    if request.stream:
        chat["stream"] = True
        chat["stream_options"] = {"include_usage": True}
        if usage_in_every_chunk:
            chat["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return msgspec.json.encode(chat)


def chat_of_count(request: CountRequest) -> bytes:
    """The chat request whose prompt is the one to count, as a body."""
    return msgspec.json.encode(_chat(request))


def _chat(request: CountRequest) -> Chat:
    chat: Chat = {"model": request.model, "messages": _turns(request)}
    if request.tools:
        chat["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None and request.tools:
        _choose(chat, request.tool_choice)
    thinks = request.thinking is not None and request.thinking.type != "disabled"
    chat["include_reasoning"] = thinks
    config = request.output_config or OutputConfig()
    if request.thinking is not None and thinks and request.thinking.budget_tokens is not None:
        chat["reasoning_budget"] = request.thinking.budget_tokens
    if request.thinking is not None and not thinks:
        chat["reasoning_effort"] = "none"
    elif config.effort is not None:
        chat["reasoning_effort"] = "xhigh" if config.effort == "max" else config.effort
    if config.format is not None:
        schema = {"name": "answer", "schema": config.format.schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _turns(request: CountRequest) -> list[Chat]:
    turns: list[Chat] = []
    if request.system:
        turns.append({"role": "system", "content": _text(request.system)})
    for turn in request.messages:
        if isinstance(turn.content, str):
            turns.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            turns.append(_assistant_turn(turn.content))
        else:
            turns += _user_turns(turn.role, turn.content)
    return turns


def _assistant_turn(blocks: list[Block]) -> Chat:
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    turn: Chat = {"role": "assistant", "content": text}
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    if thought:
        turn["reasoning_content"] = thought
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {
                "name": block.name,
                "arguments": msgspec.json.encode(block.input).decode(),
            },
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if calls:
        turn["tool_calls"] = calls
    return turn


def _user_turns(role: str, blocks: list[Block]) -> list[Chat]:
    """Results of calls are turns of their own; they come before what the user says."""
    turns: list[Chat] = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content or "")}
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    said = [block for block in blocks if isinstance(block, TextBlock | ImageBlock)]
    if said or not turns:
        turns.append({"role": role, "content": _content(said)})
    return turns


def _content(said: list[TextBlock | ImageBlock]) -> object:
    """Text alone as one text; with images as parts in their order."""
    texts = [block.text for block in said if isinstance(block, TextBlock)]
    if len(texts) == len(said):
        return "".join(texts)
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, TextBlock)
        else {"type": "image_url", "image_url": {"url": block.source.url}}
        for block in said
    ]


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _tool(tool: OfferedTool) -> Chat:
    function: Chat = {"name": tool.name, "parameters": tool.input_schema}
    _set(function, "description", tool.description)
    _set(function, "strict", tool.strict)
    return {"type": "function", "function": function}


def _choose(chat: Chat, choice: Choice) -> None:
    words: dict[str, object] = {"auto": "auto", "any": "required", "none": "none"}
    named = {"type": "function", "function": {"name": choice.name}}
    chat["tool_choice"] = words.get(choice.type, named)
    if choice.disable_parallel_tool_use:
        chat["parallel_tool_calls"] = False


def _check_tools(request: CountRequest) -> None:
    for index, tool in enumerate(request.tools or ()):
        if tool.type not in (None, "custom"):
            raise InvalidRequest(
                f"The tool {tool.name!r} is of type {tool.type!r}; this server runs no tools of "
                "its own, so only custom ones can be offered.",
                param=f"tools[{index}].type",
            )
    choice = request.tool_choice
    if choice is not None and choice.type == "tool" and choice.name is None:
        raise InvalidRequest("tool_choice of type tool needs a name.", param="tool_choice.name")


def _set(values: Chat, name: str, value: object) -> None:
    if value is not None:
        values[name] = value
