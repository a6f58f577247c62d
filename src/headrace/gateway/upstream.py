"""What is sent to an engine, and what its refusals mean to the caller."""

import asyncio
import functools
import hashlib
import hmac
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from headrace.adapters.lora import lora_fields
from headrace.adapters.protocol import Dialect
from headrace.adapters.registry import find_adapter
from headrace.base.errors import (
    HeadraceError,
    NotFound,
    RequestAborted,
    Unavailable,
    UpstreamFailed,
)
from headrace.gateway.chat_writer import writer_of
from headrace.gateway.reported_usage import ReportedUsage
from headrace.http.client import HttpClient
from headrace.router.endpoint import EndpointSpec
from headrace.router.lease import Lease
from headrace.spec.models import ChatFormat
from headrace.spec.settlements import TokenUsage

chat_path = "/v1/chat/completions"
usage_path = "/internal/usage/"
usage_timeout_s = 3.0  # an engine waits up to two seconds for the request to end
usage_delays_s = (0.1, 0.4, 1.5)  # between attempts for what nobody waits for
small_answer_bytes_max = 1024 * 1024
retry_after_s_default = 1.0
cached_salts_max = 10_000  # of the busiest tenants; making one takes a few microseconds
cache_salt_label = b"headrace cache salt v1:"  # one purpose for each use of the pepper


class ErrorDetail(msgspec.Struct):
    """The part of an engine's error that counts."""

    code: str | int | None = None


class ErrorBody(msgspec.Struct):
    """The whole error body."""

    error: ErrorDetail


class EndedUsage(msgspec.Struct):
    """The part of an engine's usage record that counts."""

    usage: ReportedUsage


own_fields = ("service_tier", "priority")  # of a body; they are answered to in the gateway

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_error = msgspec.json.Decoder(ErrorBody)
_count = msgspec.json.Decoder(int | None)
_ended = msgspec.json.Decoder(EndedUsage)


def engine_body(
    body: bytes,
    spec: EndpointSpec,
    extra_fields: Mapping[str, object],
    output_limit: int | None,
    adapter: str = "",
) -> bytes:
    """The caller's body for an engine: its model name, its kind's fields, our output cap.

    What decides who goes first is the gateway's, and stays here."""
    fields: dict[str, object] = dict(_fields.decode(body))
    for name in own_fields:
        fields.pop(name, None)
    fields.update(extra_fields)
    fields["model"] = spec.served_model_name
    if adapter:
        choice = find_adapter(spec.engine).facts.lora
        fields |= lora_fields(choice, spec.served_model_name, adapter, spec.loras)
    if output_limit is not None:
        for name in ("max_tokens", "max_completion_tokens"):  # two names of the same
            fields.pop(name, None)
        fields[find_adapter(spec.engine).output_limit_field] = output_limit
        _lower_least(fields, output_limit)
    return _encode(fields)


def _lower_least(fields: dict[str, object], output_limit: int) -> None:
    """No more tokens are asked for at least than at most: engines refuse that, with a number that
    the caller never sent."""
    least = fields.get("min_tokens")
    if isinstance(least, msgspec.Raw):
        fields["min_tokens"] = min(_count.decode(least) or 0, output_limit)


@functools.lru_cache(maxsize=cached_salts_max)
def cache_salt(pepper: bytes, tenant_id: str) -> str:
    """Keeps one tenant's prefix cache apart from every other's; nobody can guess another's."""
    digest = hmac.digest(pepper, cache_salt_label + tenant_id.encode(), hashlib.sha256)
    return digest.hex()[:32]


def engine_url(spec: EndpointSpec, path: str) -> str:
    """Where an engine has a route; what is not OpenAI's lies at its root."""
    if path.startswith("/v1/"):
        return find_adapter(spec.engine).url(spec.address, path)
    return spec.address + path


async def in_dialect(
    dialect: Dialect, path: str, body: bytes, chat_format: ChatFormat | None = None
) -> tuple[str, bytes]:
    """The path and the body of a request to an engine that has another API than OpenAI's.

    NotFound if it has nothing of the kind, InvalidRequest names a field that it has no word for."""
    if path != chat_path:
        raise NotFound(f"The engine of this model does not offer {path}.")
    if chat_format is None:
        return dialect.request(body, None)
    # A template's steps are bounded, but others are not to wait for them.
    return await asyncio.to_thread(dialect.request, body, writer_of(chat_format))


def engine_headers(spec: EndpointSpec, extra_headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a generating request; nothing of the caller's."""
    return {"Content-Type": "application/json", **extra_headers, **key_headers(spec)}


def key_headers(spec: EndpointSpec) -> dict[str, str]:
    """The headers that authenticate the gateway to an engine."""
    return find_adapter(spec.engine).headers(spec.engine_key) if spec.engine_key else {}


async def ask_usage_patiently(
    client: HttpClient, spec: EndpointSpec, request_id: str
) -> TokenUsage | None:
    """As `ask_usage`, again where that failed: an engine that is busy may not know yet."""
    for delay_s in usage_delays_s:
        usage = await ask_usage(client, spec, request_id)
        if usage is not None:
            return usage
        await asyncio.sleep(delay_s)
    return await ask_usage(client, spec, request_id)


async def ask_usage(client: HttpClient, spec: EndpointSpec, request_id: str) -> TokenUsage | None:
    """What a request that ended used, by the engine's own record; None if it cannot say."""
    try:
        answer = await client.fetch(
            "GET",
            f"{spec.address}{usage_path}{request_id}",
            headers=key_headers(spec),
            timeout_s=usage_timeout_s,
            limit_bytes=small_answer_bytes_max,
        )
        return _ended.decode(answer.body).usage.tokens() if answer.status == 200 else None
    except (HeadraceError, msgspec.DecodeError):
        return None


def refusal(spec: EndpointSpec, status: int, body: bytes) -> HeadraceError:
    """An engine's unsuccessful answer: the caller is wrong, the engine is wrong, or try again."""
    return find_adapter(spec.engine).error(status, body)


def conclude(lease: Lease, status: int, body: bytes, now_s: float) -> bool:
    """What an unsuccessful answer says of its endpoint; True if it is ejected for it.

    502 and 503 are said of the whole of it, by itself or by what stands before it. But 502 with
    our own code, and every other failure, is said of one request by an engine that is there; what
    the caller did wrong, some engines say with its status as the code inside a stream."""
    code = _code_of(body)
    if isinstance(code, int) and code < HTTPStatus.INTERNAL_SERVER_ERROR:
        status = code
    if status == HTTPStatus.SERVICE_UNAVAILABLE or (
        status == HTTPStatus.BAD_GATEWAY and code != UpstreamFailed.code
    ):
        lease.fail(now_s)
        return True
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and code != RequestAborted.code:
        return lease.fail_request(now_s)
    lease.answered()
    return False


def _code_of(body: bytes) -> str | int | None:
    try:
        return _error.decode(body).error.code
    except msgspec.DecodeError:
        return None


def stream_error(body: bytes) -> HeadraceError:
    """An error that an engine put into a stream of status 200; its own words are not passed on."""
    code = _code_of(body)
    if code == Unavailable.code:
        return Unavailable("The engine stopped; try again.", retry_after_s=retry_after_s_default)
    if code == RequestAborted.code:
        return RequestAborted("The operator of its engine ended this request.")
    return UpstreamFailed("The engine failed while it generated the answer.")
