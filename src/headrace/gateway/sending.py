"""One attempt's way to its engine, as far as the head of an answer."""

from http import HTTPStatus

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError, NotFound, Unavailable
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt
from headrace.gateway.forwarding import Body, EngineRequest, Forwarding
from headrace.gateway.metering import Metering
from headrace.gateway.split import prefilled_elsewhere
from headrace.gateway.upstream import (
    conclude,
    engine_headers,
    engine_url,
    in_dialect,
    refusal,
    small_answer_bytes_max,
)
from headrace.http.client import Answer
from headrace.router.lease import Lease


async def send(
    forwarding: Forwarding,
    request: EngineRequest,
    account: Account,
    attempt: Attempt,
    timeout_s: float,
) -> Answer:
    """Send the request; an answer of status 200, or what its refusal means."""
    lease, spec = attempt.lease, attempt.spec
    path, headers, body = await _said(forwarding, request, account, attempt)
    attempt.sent_to = spec
    try:
        answer = await forwarding.client.open(
            "POST", engine_url(spec, path), headers=headers, body=body, timeout_s=timeout_s
        )
    except HeadraceError as error:
        if isinstance(error, Unavailable):
            attempt.sent_to = None  # there was no connection
        eject(forwarding, lease)
        raise
    if answer.status != 200:
        raise await _refused(forwarding, request, attempt, answer, timeout_s)
    lease.answered()
    return answer


def eject(forwarding: Forwarding, lease: Lease) -> None:
    """The endpoint broke: no request goes there for a while."""
    lease.fail(forwarding.clock.monotonic_s())
    forwarding.counters.ejections += 1


def note_failure(forwarding: Forwarding, lease: Lease, status: int, said: bytes) -> None:
    """The engine answered that it failed, in place of an answer or inside a stream."""
    is_ejected = conclude(lease, status, said, forwarding.clock.monotonic_s())
    forwarding.counters.ejections += is_ejected


async def _said(
    forwarding: Forwarding, request: EngineRequest, account: Account, attempt: Attempt
) -> tuple[str, dict[str, str], Body]:
    """The path, the headers and the body for this engine, once the reservation would survive us."""
    spec = attempt.spec
    adapter = find_adapter(spec.engine)
    extras = adapter.extras(
        stream=request.streams, request_id=attempt.request_id, cache_salt=request.cache_salt
    )
    headers = engine_headers(spec, extras.headers)
    if request.trace is not None:
        headers["traceparent"] = request.trace.traceparent
    await account.recorded()
    fields = extras.fields if request.metering is Metering.GENERATES else {}
    if attempt.meet is not None:  # of few deployments, and the same of the next
        fields = {**fields, **attempt.meet()}
    elif spec.split_tokens:
        moved = await prefilled_elsewhere(forwarding, request, attempt)
        fields = {**fields, **moved}
    path, body = request.path, request.body_for(spec, fields)
    if not isinstance(body, bytes):
        headers["Content-Type"] = body.content_type
    elif adapter.dialect is not None:
        path, body = await in_dialect(adapter.dialect, path, body, spec.chat_format)
    return path, headers, body


async def _refused(
    forwarding: Forwarding,
    request: EngineRequest,
    attempt: Attempt,
    answer: Answer,
    timeout_s: float,
) -> HeadraceError:
    """What an answer of another status than 200 means."""
    async with answer:
        said = await answer.read_all(small_answer_bytes_max, timeout_s)
    keeps_records = find_adapter(attempt.spec.engine).keeps_usage_records
    attempt.was_refused = keeps_records and answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if not attempt.was_refused:  # nobody could tell whether it worked
        attempt.sent_to = None
    note_failure(forwarding, attempt.lease, answer.status, said)
    if answer.status in (404, 405) and request.metering is not Metering.GENERATES:
        return NotFound(f"The engine of this model does not offer {request.path}.")
    return refusal(attempt.spec, answer.status, said)
