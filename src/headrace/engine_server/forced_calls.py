"""The grammar of an answer that has to be calls of tools, each with arguments by its schema.

It writes calls as the model's own format does, so that the parser of that format reads them. A
thought that the prompt has begun is let out first.
"""

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.endless_schemas import is_endless
from headrace.engine_server.messages import Grammar
from headrace.protocol.requests import ChatRequest
from headrace.protocol.tool_parsers import hermes, llama3
from headrace.protocol.tools import FunctionDefinition, forced_name

forced_calls_max = 16  # of one answer


def forced_calls(request: ChatRequest, dialect: Dialect, prompt_tail: str) -> Grammar | None:
    """The grammar, or None if the answer need not be a call."""
    if not request.must_call:
        return None
    name = forced_name(request.tool_choice)
    functions = [
        tool.function for tool in request.offered_tools if name in (None, tool.function.name)
    ]
    one = name is not None or request.parallel_tool_calls is False
    lines = [*_frame(dialect, one=one), *_calls(functions, dialect)]
    reasoning = dialect.reasoning
    thinks = reasoning is not None and prompt_tail.rstrip().endswith(reasoning.opening)
    if thinks and reasoning is not None:
        closing = reasoning.closing.replace("/", "\\/")
        lines = [f"start: thought calls\nthought[lazy]: /(.|\\n)*{closing}/", *lines]
    else:
        lines = ["start: calls", *lines]
    return Grammar("lark", "\n".join(lines), "tools")


def _frame(dialect: Dialect, *, one: bool) -> list[str]:
    """How calls stand beside each other."""
    tool_format = dialect.forced_format()
    more = "" if one else f"{{0,{forced_calls_max - 1}}}"
    if tool_format is hermes:
        opening, closing = _text(f"{hermes.opening}\n"), _text(f"\n{hermes.closing}")
        rest = "" if one else f' ("\\n" call){more}'
        return [f"calls: call{rest}", f"call: {opening} body {closing}"]
    if tool_format is llama3:
        rest = "" if one else f' ("; " body){more}'
        return [f"calls: body{rest}"]
    rest = "" if one else f' (", " body){more}'
    return [f'calls: "[" body{rest} "]"']


def _calls(functions: list[FunctionDefinition], dialect: Dialect) -> list[str]:
    """Each function's call with its arguments."""
    key = "parameters" if dialect.forced_format() is llama3 else "arguments"
    lines = ["body: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        name = msgspec.json.encode(function.name).decode()
        before = _text(f'{{"name": {name}, "{key}": ')
        if is_endless(function.schema):
            raise InvalidRequest(
                f"The parameters of the tool {function.name!r} always contain themselves, so that "
                "no call could end; make the recursive part optional.",
                param="tools",
            )
        schema = msgspec.json.encode(function.schema).decode()
        lines += [f'call_{index}: {before} arguments_{index} "}}"']
        lines += [f"arguments_{index}: %json {schema}"]
    return lines


def _text(text: str) -> str:
    """A text as a grammar's literal."""
    return msgspec.json.encode(text).decode()
