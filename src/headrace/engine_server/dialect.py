"""How one model writes: its calls of tools and its thoughts, and the parsers that read them.

Told by the chat template, or by the operator where a template says too little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import ConfigurationError, InvalidRequest
from headrace.engine_server.messages import ThoughtBudget
from headrace.protocol.answer_parser import AnswerParser
from headrace.protocol.reasoning import (
    ReasoningFormat,
    ReasoningSplitter,
    reasoning_formats,
    reasoning_of_template,
)
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.tool_parsers import ToolCallParser, ToolFormat, format_of_template
from headrace.protocol.tool_parsers import tool_formats as known_tool_formats
from headrace.protocol.tools import forced_name
from headrace.tokenizer.tokenizer import Tokenizer

no_parser = "none"
tail_tokens = 32  # of a prompt, to see whether it begins a thought


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a model writes around calls and thoughts."""

    tool_format: ToolFormat | None  # None reads no calls in answers that need not have one
    reasoning: ReasoningFormat | None
    template_has_tools: bool  # otherwise tools are described in a system message
    shown_ids: frozenset[int]  # control tokens among the marks: the parsers have to see them

    def parser(self, request: ChatRequest | CompletionRequest, prompt_tail: str) -> AnswerParser:
        """The parser of one answer."""
        if isinstance(request, CompletionRequest):
            return AnswerParser(None, None)
        splitter = None
        if self.reasoning is not None:
            splitter = ReasoningSplitter(self.reasoning, prompt_tail)
        return AnswerParser(splitter, self._tool_parser(request))

    def forced_format(self) -> ToolFormat:
        """How calls are written where a grammar asks for them."""
        return self.tool_format or known_tool_formats["json"]

    def thought_budget(
        self, token_count: int, tokenizer: Tokenizer, prompt_end: str
    ) -> ThoughtBudget | None:
        """How the engine ends a thought of so many tokens; None for a model that never thinks.

        InvalidRequest if it marks thoughts with more than one token, which cannot be forced."""
        reasoning = self.reasoning
        if reasoning is None:
            return None
        closing = tokenizer.encode(reasoning.closing, parse_special=True)
        opening = tokenizer.encode(reasoning.opening, parse_special=True)
        if len(closing) != 1 or len(opening) != 1:
            raise InvalidRequest(
                f"This model writes {reasoning.closing} as several tokens, so its thoughts cannot "
                "be cut; leave reasoning_budget out, or lower reasoning_effort.",
                param="reasoning_budget",
            )
        has_begun = ReasoningSplitter(reasoning, prompt_end).is_inside
        return ThoughtBudget(token_count, closing[0], None if has_begun else opening[0])

    def _tool_parser(self, request: ChatRequest) -> ToolCallParser | None:
        tools = request.offered_tools
        tool_format = self.forced_format() if request.must_call else self.tool_format
        if not tools or tool_format is None:
            return None
        one = request.parallel_tool_calls is False or forced_name(request.tool_choice) is not None
        names = {tool.function.name for tool in tools}
        return ToolCallParser(tool_format, names, calls_max=1 if one else None)


def read_dialect(
    tokenizer: Tokenizer, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> Dialect:
    """The model's dialect; the operator's choices come before what the template tells."""
    source = tokenizer.chat_template.source if tokenizer.chat_template else ""
    tool_format = format_of_template(source) if tool_parser is None else _tool_format(tool_parser)
    if reasoning_parser is None:
        reasoning = reasoning_of_template(source)
    else:
        reasoning = _reasoning_format(reasoning_parser)
    marks: list[str] = []
    if tool_format is not None:
        marks += [tool_format.opening, tool_format.closing, *tool_format.skipped]
    if reasoning is not None:
        marks += [reasoning.opening, reasoning.closing]
    return Dialect(tool_format, reasoning, "tools" in source, _control_ids(tokenizer, marks))


def check_parsers(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Raise ConfigurationError if the operator names a parser that there is not."""
    if tool_parser is not None:
        _tool_format(tool_parser)
    if reasoning_parser is not None:
        _reasoning_format(reasoning_parser)


def prompt_tail(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The end of a prompt as text, control tokens spelled out."""
    last = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids[-tail_tokens:])
    return last.decode(errors="replace")


class ShownTokens:
    """A tokenizer whose answers show some, or all, of their control tokens."""

    def __init__(self, tokenizer: Tokenizer, shown_ids: frozenset[int] | None) -> None:
        """None shows all of them."""
        self._tokenizer = tokenizer
        self._shown_ids = shown_ids

    def text_bytes(self, token_id: int) -> bytes:
        """A token's bytes in an answer."""
        if self._shown_ids is None or token_id in self._shown_ids:
            return self._tokenizer.token_bytes(token_id)
        return self._tokenizer.text_bytes(token_id)


def _control_ids(tokenizer: Tokenizer, marks: Sequence[str]) -> frozenset[int]:
    """The marks that are one control token each, which answers do not show by themselves."""
    encoded = [tokenizer.encode(mark, parse_special=True) for mark in marks if mark]
    single = {token_ids[0] for token_ids in encoded if len(token_ids) == 1}
    return frozenset(token_id for token_id in single if not tokenizer.text_bytes(token_id))


def _tool_format(name: str) -> ToolFormat | None:
    if name == no_parser:
        return None
    if name not in known_tool_formats:
        raise ConfigurationError(
            f"There is no tool parser {name!r}; choose {', '.join(known_tool_formats)} or none."
        )
    return known_tool_formats[name]


def _reasoning_format(name: str) -> ReasoningFormat | None:
    if name == no_parser:
        return None
    if name not in reasoning_formats:
        raise ConfigurationError(
            f"There is no reasoning parser {name!r}; choose {', '.join(reasoning_formats)} or none."
        )
    return reasoning_formats[name]
