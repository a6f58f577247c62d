"""What an engine's unsuccessful answer means: whose fault it is, and whether to retry.

Engines agree on most statuses, and on little of the body (`engine_errors`). An adapter whose
engine means something else by a status changes it before it comes here.
"""

from collections.abc import Sequence

from headrace.adapters.engine_errors import ContextPattern, ErrorWords, read_words
from headrace.base.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    HeadraceError,
    InvalidRequest,
    PayloadTooLarge,
    RateLimited,
    Unavailable,
    UpstreamFailed,
)

retry_after_s = 1.0  # engines that refuse for load are worth asking again soon
context_words = ("context_length_exceeded", "exceed_context_size_error")  # as code or type


def error_of(
    status: int, body: bytes, context_patterns: Sequence[ContextPattern] = ()
) -> HeadraceError:
    """The error for an unsuccessful answer.

    Only words about the caller's own request are passed on: what an engine says of itself may
    name paths and keys."""
    if status in (400, 413, 422):
        return _wrong_request(status, read_words(body), context_patterns)
    if status == 429:
        return RateLimited(
            "The engine has as many requests as it takes; try again.", retry_after_s=retry_after_s
        )
    if status == 503:
        return Unavailable(
            "The engine cannot take the request now; try again.", retry_after_s=retry_after_s
        )
    if status in (408, 504):
        return DeadlineExceeded("The engine gave the request up; try again.")
    return UpstreamFailed(f"The engine failed on this request (it answered {status}).")


def _wrong_request(
    status: int, words: ErrorWords, context_patterns: Sequence[ContextPattern]
) -> HeadraceError:
    """The engine's words for what the caller did wrong, with its numbers."""
    message = words.message or f"The engine refused it ({status})."
    if status == 413:
        return PayloadTooLarge(message, param=words.param)
    numbers = {
        "prompt_tokens": words.prompt_tokens,
        "max_model_len": words.max_model_len,
        "max_tokens": words.max_tokens,
    }
    too_long = words.code in context_words or words.type in context_words
    for pattern in context_patterns:
        found = pattern.numbers(words.message)
        if found is not None:
            too_long = True
            numbers["prompt_tokens"] = numbers["prompt_tokens"] or found[0]
            numbers["max_model_len"] = numbers["max_model_len"] or found[1]
            break
    known = {name: value for name, value in numbers.items() if value is not None}
    kind = ContextLengthExceeded if too_long else InvalidRequest
    return kind(message, param=words.param, **known)


def tells_context(body: bytes, context_patterns: Sequence[ContextPattern]) -> bool:
    """Whether the words are those for a request that does not fit."""
    message = read_words(body).message
    return any(pattern.numbers(message) is not None for pattern in context_patterns)
