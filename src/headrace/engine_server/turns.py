"""Messages and tools as chat templates read them.

Templates that know nothing of tools get them as text: a system message that describes the tools,
calls as the text that the model should have written, results as a user's turn.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dialect import Dialect
from headrace.protocol.images import refuse_images
from headrace.protocol.requests import ChatMessage, ChatRequest
from headrace.protocol.tool_parsers import ToolFormat, mistral
from headrace.protocol.tools import ToolCall

Turn = dict[str, object]

short_id_characters = 9  # what Mistral's templates demand of a call's id
variables_max = 32
variable_name = re.compile(r"[a-z_][a-z0-9_]{0,63}")
variable_text = re.compile(r"[A-Za-z0-9_ .,:/-]{0,64}")  # no text of these spells a control token


def turns_of(request: ChatRequest, dialect: Dialect) -> list[Turn]:
    """The conversation, with the tools in it where the template has no place for them.

    InvalidRequest if there is an image in it."""
    refuse_images(request)
    tools = request.offered_tools
    described = bool(tools) and not dialect.template_has_tools
    turns = [_turn(message, dialect) for message in request.messages]
    if not described:
        return turns
    text = _description(tools_of(request) or [], dialect.forced_format())
    if turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def tools_of(request: ChatRequest) -> list[Mapping[str, object]] | None:
    """The tools as templates read them; None if there are none."""
    tools: list[Mapping[str, object]] = [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.schema,
            },
        }
        for tool in request.offered_tools
    ]
    return tools or None


def template_variables(request: ChatRequest) -> dict[str, object]:
    """The template's variables that the caller sets; InvalidRequest if one is no plain value."""
    variables: dict[str, object] = {}
    if request.reasoning_effort is not None:
        thinks = request.reasoning_effort != "none"
        variables = {"enable_thinking": thinks, "thinking": thinks}
        if thinks:
            variables["reasoning_effort"] = request.reasoning_effort
    sent = request.chat_template_kwargs or {}
    for name, value in sent.items():
        plain = value is None or isinstance(value, bool | int | float)
        if not plain and not (isinstance(value, str) and variable_text.fullmatch(value)):
            plain = False
        elif isinstance(value, str):
            plain = True
        if not plain or not variable_name.fullmatch(name) or len(sent) > variables_max:
            raise InvalidRequest(
                "chat_template_kwargs takes up to 32 names in lower case with numbers, booleans "
                f"and short plain texts; {name[:64]!r} is not one of these.",
                param="chat_template_kwargs",
            )
    return variables | sent


def _turn(message: ChatMessage, dialect: Dialect) -> Turn:
    """A message as templates read it; they know `developer` under its older name only."""
    role = "system" if message.role == "developer" else message.role
    turn: Turn = {"role": role, "content": message.text}
    if message.name is not None:
        turn["name"] = message.name
    thought = message.reasoning_content or message.reasoning
    if thought:
        turn["reasoning_content"] = thought
    if message.tool_calls:
        if dialect.template_has_tools:
            turn["tool_calls"] = [_call(call, dialect) for call in message.tool_calls]
        else:
            written = _written(message.tool_calls, dialect.forced_format())
            turn["content"] = f"{message.text}\n{written}" if message.text else written
    if role == "tool":
        if not dialect.template_has_tools:
            return {"role": "user", "content": f"The function returned:\n{message.text}"}
        if message.tool_call_id is not None:
            turn["tool_call_id"] = _id_for(message.tool_call_id, dialect)
    return turn


def _call(call: ToolCall, dialect: Dialect) -> Turn:
    function = {"name": call.function.name, "arguments": _arguments(call)}
    return {"id": _id_for(call.id, dialect), "type": "function", "function": function}


def _arguments(call: ToolCall) -> object:
    """The arguments as a value, as templates write them out; as they are if they are no object."""
    try:
        value = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return call.function.arguments
    return value if isinstance(value, dict) else call.function.arguments


def _id_for(call_id: str, dialect: Dialect) -> str:
    if dialect.tool_format is not mistral:
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:short_id_characters]


def _written(calls: Sequence[ToolCall], tool_format: ToolFormat) -> str:
    """Calls as the model should write them."""
    texts = [
        msgspec.json.encode({"name": call.function.name, "arguments": _arguments(call)}).decode()
        for call in calls
    ]
    if tool_format.closing:
        return "\n".join(f"{tool_format.opening}\n{text}\n{tool_format.closing}" for text in texts)
    return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"


def _description(tools: Sequence[Mapping[str, object]], tool_format: ToolFormat) -> str:
    """What a model is told whose template has no place for tools."""
    lines = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
    example = '{"name": "<function name>", "arguments": {<arguments>}}'
    if tool_format.closing:
        example = f"{tool_format.opening}\n{example}\n{tool_format.closing}"
    return (
        f"You may call these functions:\n{lines}\n"
        f"To call one, answer with nothing but JSON of this form:\n{example}"
    )
