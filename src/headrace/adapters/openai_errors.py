"""What an engine's error answer in OpenAI's shape means: whose fault it is, and whether to retry.

Engines agree on the shape and on most statuses; an adapter whose engine differs changes the answer
before it comes here.
"""

import msgspec

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
message_length_max = 500  # of an engine's words that reach a caller


class ErrorDetail(msgspec.Struct):
    """An engine's error, with the numbers that ours carry."""

    message: str = ""
    code: str | int | None = None
    param: str | None = None
    prompt_tokens: int | None = None
    max_model_len: int | None = None
    max_tokens: int | None = None


class ErrorBody(msgspec.Struct):
    """The whole error body."""

    error: ErrorDetail


_decode = msgspec.json.Decoder(ErrorBody).decode


def error_of(status: int, body: bytes) -> HeadraceError:
    """The error for an unsuccessful answer.

    Only words about the caller's own request are passed on: what an engine says of itself may
    name paths and keys."""
    try:
        detail = _decode(body).error
    except msgspec.DecodeError:
        detail = ErrorDetail()
    if status in (400, 413, 422):
        return _wrong_request(status, detail)
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


def _wrong_request(status: int, detail: ErrorDetail) -> HeadraceError:
    """The engine's words for what the caller did wrong, with its numbers."""
    message = detail.message[:message_length_max] or f"The engine refused it ({status})."
    if status == 413:
        return PayloadTooLarge(message, param=detail.param)
    numbers = {
        name: value
        for name in ("prompt_tokens", "max_model_len", "max_tokens")
        if (value := getattr(detail, name)) is not None
    }
    if detail.code == ContextLengthExceeded.code:
        return ContextLengthExceeded(message, param=detail.param, **numbers)
    return InvalidRequest(message, param=detail.param, **numbers)
