"""The first leg of a split request: its prompt computed at P, whose KV D is then told of.

    attempt at D begins ──P by `router.split`──> POST to P, unstreamed, one token
                                                   │ answered: kv_transfer_params for D
                                                   └ anything else: none, and D computes the prompt

Nothing of P reaches the caller, and D's usage is what is charged: it has the prompt once. A request
that ends while P works is charged by P's record of it.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError, UpstreamFailed
from headrace.gateway.asked import Asked
from headrace.gateway.attempt import Attempt
from headrace.gateway.forwarding import EngineRequest, Forwarding
from headrace.gateway.metering import Metering
from headrace.gateway.reported_usage import ReportedUsage
from headrace.gateway.upstream import (
    conclude,
    engine_headers,
    engine_url,
    refusal,
    small_answer_bytes_max,
)
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.router.endpoint import EndpointSpec
from headrace.router.lease import Lease

suffix = ".prefill"  # of the request id that P knows
handing_over = {"do_remote_decode": True, "do_remote_prefill": False}
# Of the second leg alone, or what P's one token needs none of.
dropped_fields = (
    *("max_completion_tokens", "min_tokens", "stream_options", "n", "best_of", "stop"),
    *("logprobs", "top_logprobs", "response_format", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice"),
)
nameless_hosts = (None, "", "0.0.0.0", "::", "localhost")  # noqa: S104 -- compared, not listened on

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class PrefillAnswer(msgspec.Struct):
    """The part of P's answer that counts."""

    kv_transfer_params: dict[str, object] | None = None
    usage: ReportedUsage | None = None


_answer = msgspec.json.Decoder(PrefillAnswer)


def may_split(asked: Asked) -> bool:
    """Whether a request's prompt can be computed elsewhere: one text, nothing told of it."""
    request = asked.request
    if asked.metering is not Metering.GENERATES or asked.form is not None or asked.images:
        return False
    if isinstance(request, CompletionRequest):
        return len(request.prompts) == 1 and not request.echo and request.prompt_logprobs is None
    return isinstance(request, ChatRequest) and request.prompt_logprobs is None


def prefill_body(body: bytes) -> bytes:
    """What P is asked: the same prompt, one token, unstreamed, and its KV for another."""
    fields: dict[str, object] = dict(_fields.decode(body))
    for name in dropped_fields:
        fields.pop(name, None)
    fields |= {"max_tokens": 1, "stream": False, "kv_transfer_params": handing_over}
    return _encode(fields)


async def prefilled_elsewhere(
    forwarding: Forwarding, request: EngineRequest, attempt: Attempt
) -> Mapping[str, object]:
    """The fields by which the attempt's engine finds its prompt's KV; none: it is to compute it."""
    if request.may_split is None or not request.may_split():
        return {}
    now_s = forwarding.clock.monotonic_s()
    lease = forwarding.splitter.lease(attempt.lease, request.errand.work, now_s)
    if lease is None:
        return {}
    spec = lease.endpoint.spec
    request_id = attempt.request_id + suffix
    attempt.prefilled_at = (spec, request_id)
    try:
        said = await _ask(forwarding, request, lease, request_id)
    except HeadraceError:
        forwarding.counters.splits["failed"] += 1
        attempt.prefilled_at = None
        return {}
    finally:
        lease.release()
    attempt.prefilled_at = None  # from here on the second leg's record has it all
    if said.usage is not None:
        forwarding.picker.answered(lease, said.usage.tokens().cached_tokens)
    if not said.kv_transfer_params:
        forwarding.counters.splits["failed"] += 1
        return {}
    forwarding.counters.splits["done"] += 1
    attempt.is_split = True
    return {"kv_transfer_params": with_host(said.kv_transfer_params, spec)}


async def _ask(
    forwarding: Forwarding, request: EngineRequest, lease: Lease, request_id: str
) -> PrefillAnswer:
    """P's answer; HeadraceError if it has none, which ejects it if it is broken."""
    spec, timeout_s = lease.endpoint.spec, forwarding.timeouts.first_output_s
    extras = find_adapter(spec.engine).extras(
        stream=False, request_id=request_id, cache_salt=request.cache_salt
    )
    body = request.body_for(spec, extras.fields)
    assert isinstance(body, bytes), "only JSON is split"
    try:
        answer = await forwarding.client.open(
            "POST",
            engine_url(spec, request.path),
            headers=engine_headers(spec, extras.headers),
            body=prefill_body(body),
            timeout_s=timeout_s,
        )
        async with answer:
            said = await answer.read_all(small_answer_bytes_max, timeout_s)
    except HeadraceError:
        lease.fail(forwarding.clock.monotonic_s())
        forwarding.counters.ejections += 1
        raise
    if answer.status != 200:
        now_s = forwarding.clock.monotonic_s()
        forwarding.counters.ejections += conclude(lease, answer.status, said, now_s)
        raise refusal(spec, answer.status, said)
    lease.succeed()
    lease.prefilled(forwarding.clock.monotonic_s())
    try:
        return _answer.decode(said)
    except msgspec.DecodeError as error:
        raise UpstreamFailed("The engine's answer to a prefill cannot be read.") from error


def with_host(params: Mapping[str, object], spec: EndpointSpec) -> Mapping[str, object]:
    """What P answered, with the host at which this gateway reaches it if it named none of use:
    a server that listens everywhere may know itself by no other name."""
    if params.get("remote_host") not in nameless_hosts:
        return params
    return {**params, "remote_host": urlsplit(spec.address).hostname or ""}
