"""What a request may use at most, before anything is sent: the numbers of its reservation.

Prompt: byte-level vocabularies never need more tokens than the text has bytes, so the bytes plus
what a chat template adds bound it without a tokenizer. Output: what the caller asked for, else the
model's context, and no more than the credit, budgets and token limits leave. What cannot fit the
context is refused (`context_room`). A cap that the caller did not ask for is sent to the engine, so
that it holds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.gateway.context_room import Context, check_fits, output_left, unknown_context
from headrace.ledger.limits import Room
from headrace.ledger.rating import output_nanousd_per_million_max, worst_case_nanousd
from headrace.protocol.requests import ChatMessage, ChatRequest, CompletionRequest
from headrace.spec.prices import PriceVersion

TextRequest = ChatRequest | CompletionRequest

template_tokens_max = 512  # what a template may write once: a default system prompt, markers
message_tokens_max = 64  # and around each message: markers, role, name
completion_tokens_default = 16  # OpenAI's, for text completions without max_tokens
context_tokens_default = 32_768  # while neither the operator nor the engine has told
image_tokens_max = 16_384  # of one: what the largest picture that engines take comes to
tool_writing_max = 4  # a template may write a tool's schema twice, indented, with escapes
fill_tokens_max = 3  # around the parts of a prompt that is to be filled in the middle
expected_output_tokens = 256  # of a request that sets no limit; estimates load
tokens_per_price_unit = 1_000_000
tight_requests = 64  # by their bounds, in what is left: prompts are counted exactly from there on
unlimited = Room()


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """What counts of a request that writes no text."""

    model: str
    prompt_tokens_max: int
    output_tokens_max: int = 0
    output_limit: int = 0
    stream: bool = False
    wants_usage_chunk: bool = False
    wants_usage_in_every_chunk: bool = False
    prompt_cache_key: str | None = None


GeneratingRequest = TextRequest | PromptRequest


class TokenBounds(NamedTuple):
    """The most that a request can use."""

    prompt_tokens_max: int
    output_tokens_max: int
    output_limit_sent: int | None  # to be set in the engine's request; None: leave it as it came


def prompt_bound(request: TextRequest, context_length: int | None = None) -> int:
    """No fewer tokens than any byte-level tokenizer makes of the prompts, over all of them.

    A prompt beyond the context is refused by the engine, so none counts for more than that."""
    return sum(
        bound if context_length is None else min(bound, context_length)
        for bound in _prompt_bounds(request)
    )


def _prompt_bounds(request: TextRequest) -> list[int]:
    if isinstance(request, CompletionRequest):
        after = fill_tokens_max + utf8_length(request.suffix) if request.suffix else 0
        return [
            1 + after + (utf8_length(prompt) if isinstance(prompt, str) else len(prompt))
            for prompt in request.prompts
        ]
    texts = sum(message_bytes(message) for message in request.messages)
    offered = len(msgspec.json.encode(request.offered_tools)) if request.offered_tools else 0
    written = texts + tool_writing_max * offered
    return [written + template_tokens_max + message_tokens_max * len(request.messages)]


def message_bytes(message: ChatMessage) -> int:
    """The bytes of all that a template may write of a message; an image's tokens count as many."""
    calls = message.tool_calls or ()
    called = sum(
        utf8_length(call.function.name) + utf8_length(call.function.arguments) for call in calls
    )
    thought = message.reasoning_content or message.reasoning or ""
    seen = image_tokens_max * message.image_count
    return utf8_length(message.text) + tool_writing_max * called + utf8_length(thought) + seen


def utf8_length(text: str) -> int:
    """The bytes of a text in UTF-8; a lone surrogate, which JSON can carry, counts as three."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def token_bounds(
    request: GeneratingRequest,
    *,
    context: Context = unknown_context,
    price: PriceVersion | None,
    spendable_nanousd: int | None,
    room: Room = unlimited,
    prompt_tokens: int | None = None,
) -> TokenBounds:
    """The bounds to reserve; `spendable_nanousd` is None for tenants that pay afterwards.

    `room` is what the limits of the request's scopes leave, `prompt_tokens` an exact count.
    ContextLengthExceeded if prompt and limit certainly do not fit the context."""
    if isinstance(request, PromptRequest):
        return TokenBounds(request.prompt_tokens_max, request.output_tokens_max, None)
    check_fits(request, context, prompt_tokens)
    left = output_left(request, context, max(_prompt_bounds(request)), prompt_tokens)
    if prompt_tokens is None:
        prompt_tokens = prompt_bound(request, context.length)
    count = request.sequences_count
    asked = request.output_limit
    if asked is None and isinstance(request, CompletionRequest):
        asked = completion_tokens_default
    if asked is not None:
        _check_least(request, asked)
        limit = asked if left is None else min(asked, left)
        sent = None if limit == request.output_limit else limit
        return TokenBounds(prompt_tokens, limit * count, sent)
    covered = lowest(
        covered_output_tokens(prompt_tokens, price, spendable_nanousd),
        covered_output_tokens(prompt_tokens, price, room.nanousd),
        None if room.tokens is None else max(0, room.tokens - prompt_tokens),
        room.output_tokens,
    )
    return _unlimited_bounds(prompt_tokens, count, context, left, covered)


def expected_output_of(*limits: int | None) -> int:
    """Output tokens to count with, under the first limit that is set; 0 only reads the prompt."""
    limit = next((limit for limit in limits if limit is not None), expected_output_tokens)
    return min(limit, expected_output_tokens)


def _check_least(request: TextRequest, limit: int) -> None:
    """InvalidRequest if the caller wants more tokens than the caller's own limit, or its default.

    Where we lower the limit, `min_tokens` is lowered with it (`upstream`)."""
    least = request.min_tokens or 0
    if least > limit:
        is_default = "" if request.output_limit is not None else ", as max_tokens is not given"
        raise InvalidRequest(
            f"min_tokens is {least}, and the output may have {limit}{is_default}; "
            "lower min_tokens, or raise max_tokens.",
            param="min_tokens",
        )


def _unlimited_bounds(
    prompt_tokens: int, count: int, context: Context, left: int | None, covered: int | None
) -> TokenBounds:
    """The bounds of a chat that sets no limit; None: neither the context nor money caps it."""
    if left is not None and not context.is_checked:
        limit = left if covered is None else max(1, min(covered // count, left))
        return TokenBounds(prompt_tokens, limit * count, limit)
    length = context.length or context_tokens_default
    if covered is None or covered >= length * count:
        return TokenBounds(prompt_tokens, length * count, None)
    # The engine refuses prompt + limit beyond the context, and the prompt is known as a bound only.
    limit = max(1, min(covered // count, length - prompt_tokens))
    return TokenBounds(prompt_tokens, limit * count, limit)


def is_tight(
    bounds: TokenBounds,
    request: GeneratingRequest,
    price: PriceVersion | None,
    spendable_nanousd: int | None,
    room: Room,
) -> bool:
    """Whether a better count may help: the bounds cap an answer, or a few of them would use up
    what is left, so that others are refused for want of what this one only might use."""
    if bounds.output_limit_sent is not None and not isinstance(request, CompletionRequest):
        return True
    tokens = bounds.prompt_tokens_max + bounds.output_tokens_max
    if room.tokens is not None and tokens * tight_requests > room.tokens:
        return True
    cheapest_nanousd = lowest(spendable_nanousd, room.nanousd)
    if price is None or cheapest_nanousd is None:
        return False
    counts = (bounds.prompt_tokens_max, bounds.output_tokens_max)
    return worst_case_nanousd(price.price, *counts) * tight_requests > cheapest_nanousd


def lowest(*bounds: int | None) -> int | None:
    """The smallest of the bounds that there are."""
    return min((bound for bound in bounds if bound is not None), default=None)


def covered_output_tokens(
    prompt_tokens: int, price: PriceVersion | None, spendable_nanousd: int | None
) -> int | None:
    """How much output the credit pays for after the prompt; None: it does not matter."""
    if price is None or spendable_nanousd is None:
        return None
    output_price = output_nanousd_per_million_max(price.price, prompt_tokens)
    if output_price == 0:
        return None
    left_nanousd = spendable_nanousd - worst_case_nanousd(price.price, prompt_tokens, 0)
    return max(0, left_nanousd * tokens_per_price_unit // output_price)
