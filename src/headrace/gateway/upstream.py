"""What is sent to an engine, and what its refusals mean to the caller."""

import hashlib
import hmac

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
from headrace.gateway.admission import GeneratingRequest
from headrace.gateway.rewriter import ReportedUsage
from headrace.http.client import HttpClient
from headrace.protocol.parsing import replace_fields
from headrace.router.endpoint import EndpointSpec
from headrace.spec.settlements import TokenUsage

usage_path = "/internal/usage/"
usage_timeout_s = 3.0  # an engine waits up to two seconds for the request to end
small_answer_bytes_max = 1024 * 1024
retry_after_s_default = 1.0
cache_salt_label = b"headrace cache salt v1:"  # one purpose for each use of the pepper

all_usage = {"include_usage": True, "continuous_usage_stats": True}


class ErrorDetail(msgspec.Struct):
    """An engine's error in OpenAI's shape, with the numbers that ours carry."""

    message: str = ""
    code: str | int | None = None
    param: str | None = None
    prompt_tokens: int | None = None
    max_model_len: int | None = None
    max_tokens: int | None = None


class ErrorBody(msgspec.Struct):
    """The whole error body."""

    error: ErrorDetail


class EndedUsage(msgspec.Struct):
    """The part of an engine's usage record that counts."""

    usage: ReportedUsage


_error = msgspec.json.Decoder(ErrorBody)
_ended = msgspec.json.Decoder(EndedUsage)


def engine_body(
    body: bytes, request: GeneratingRequest, served_model_name: str, output_limit: int | None
) -> bytes:
    """The caller's body for an engine: its model name, our usage wishes and output cap."""
    values: dict[str, object] = {"model": served_model_name}
    if request.stream:
        values["stream_options"] = all_usage
    if output_limit is not None:
        values["max_tokens"] = output_limit
    return replace_fields(body, values)


def cache_salt(pepper: bytes, tenant_id: str) -> str:
    """Keeps one tenant's prefix cache apart from every other's; engines cannot guess another."""
    digest = hmac.digest(pepper, cache_salt_label + tenant_id.encode(), hashlib.sha256)
    return digest.hex()[:32]


def engine_headers(spec: EndpointSpec, request_id: str, salt: str) -> dict[str, str]:
    """The headers of a generating request; nothing of the caller's."""
    headers = {
        "Content-Type": "application/json",
        "X-Request-Id": request_id,
        "X-Headrace-Cache-Salt": salt,
    }
    if spec.engine_key:
        headers["Authorization"] = f"Bearer {spec.engine_key}"
    return headers


async def ask_usage(client: HttpClient, spec: EndpointSpec, request_id: str) -> TokenUsage | None:
    """What a request that ended used, by the engine's own record; None if it cannot say."""
    headers = {"Authorization": f"Bearer {spec.engine_key}"} if spec.engine_key else {}
    try:
        answer = await client.fetch(
            "GET",
            f"{spec.address}{usage_path}{request_id}",
            headers=headers,
            timeout_s=usage_timeout_s,
            limit_bytes=small_answer_bytes_max,
        )
        return _ended.decode(answer.body).usage.tokens() if answer.status == 200 else None
    except (HeadraceError, msgspec.DecodeError):
        return None


def refusal(status: int, body: bytes, retry_after: str | None = None) -> HeadraceError:
    """An engine's unsuccessful answer: the caller is wrong, the engine is wrong, or try again."""
    try:
        detail = _error.decode(body).error
    except msgspec.DecodeError:
        detail = ErrorDetail()
    message = detail.message or f"The engine answered {status}."
    if status == 413:
        return PayloadTooLarge(message, param=detail.param)
    if status in (400, 422):
        return wrong_request(detail, message)
    wait_s = float(retry_after) if retry_after and retry_after.isdigit() else retry_after_s_default
    if status == 429:
        return RateLimited(message, retry_after_s=wait_s)
    if status == 503:
        return Unavailable(
            "The model's replicas cannot take it now; try again.", retry_after_s=wait_s
        )
    if status in (408, 504):
        return DeadlineExceeded("The engine gave the request up; try again.")
    return UpstreamFailed(f"The engine failed on this request (it answered {status}).")


def stream_error(body: bytes) -> HeadraceError:
    """An error that an engine put into a stream of status 200."""
    try:
        detail = _error.decode(body).error
    except msgspec.DecodeError:
        detail = ErrorDetail()
    message = detail.message or "The engine ended the stream with an error."
    if detail.code == Unavailable.code:
        return Unavailable(message, retry_after_s=retry_after_s_default)
    return UpstreamFailed(message)


def wrong_request(detail: ErrorDetail, message: str) -> InvalidRequest:
    """The engine's words for what is wrong with the request, with its numbers."""
    numbers = {
        name: value
        for name in ("prompt_tokens", "max_model_len", "max_tokens")
        if (value := getattr(detail, name)) is not None
    }
    if detail.code == ContextLengthExceeded.code:
        return ContextLengthExceeded(message, param=detail.param, **numbers)
    return InvalidRequest(message, param=detail.param, **numbers)
