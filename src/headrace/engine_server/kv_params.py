"""`kv_transfer_params` of a request: what it asks of this engine, and what is answered to it."""

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.messages import KvHandover, KvSource, Submit
from headrace.protocol.kv_transfer import KvTransferParams
from headrace.protocol.requests import ChatRequest, CompletionRequest


def hands_over(request: ChatRequest | CompletionRequest) -> bool:
    """Whether a request is for its prompt's KV alone."""
    params = request.kv_transfer_params
    return params is not None and params.do_remote_decode


def prefill_only(
    request: ChatRequest | CompletionRequest, *, has_transfers: bool
) -> ChatRequest | CompletionRequest:
    """A request that hands its KV over, without what only the other half of it is for.

    InvalidRequest if it is streamed or has several prompts, or if no KV leaves this engine."""
    if not has_transfers:
        raise InvalidRequest(
            "This engine hands no KV over; start it with --kv-transfer, or leave the field out.",
            param="kv_transfer_params",
        )
    if request.stream:
        raise InvalidRequest(
            "do_remote_decode has one answer, which tells where the KV waits; leave out stream.",
            param="stream",
        )
    if isinstance(request, ChatRequest):
        return msgspec.structs.replace(
            request,
            max_tokens=1,
            max_completion_tokens=None,
            min_tokens=None,
            n=None,
            stop=None,
            logprobs=None,
            top_logprobs=None,
            prompt_logprobs=None,
        )
    if len(request.prompts) > 1:
        raise InvalidRequest("do_remote_decode is for one prompt; send one.", param="prompt")
    return msgspec.structs.replace(
        request,
        max_tokens=1,
        min_tokens=None,
        n=None,
        best_of=None,
        stop=None,
        logprobs=None,
        prompt_logprobs=None,
        echo=None,
    )


def with_transfer(submit: Submit, params: KvTransferParams | None) -> Submit:
    """The engine's request with what it is to do about KV.

    InvalidRequest names what is missing of where the KV waits."""
    if params is None:
        return submit
    if params.do_remote_decode:
        return msgspec.structs.replace(
            submit, hands_over=True, grammar=None, stop_token_ids=[], thought_budget=None
        )
    if not params.do_remote_prefill:
        return submit
    if params.transfer_id is None or params.remote_engine_id is None or params.remote_port is None:
        raise InvalidRequest(
            "do_remote_prefill needs transfer_id, remote_engine_id and remote_port, as the engine "
            "answered them that computed the prompt.",
            param="kv_transfer_params",
        )
    source = KvSource(
        params.transfer_id,
        params.remote_engine_id,
        params.remote_host or "",
        params.remote_port,
    )
    return msgspec.structs.replace(submit, kv_source=source)


def answered_params(handover: KvHandover) -> KvTransferParams:
    """What the other replica is to be sent. Who relays it knows this engine's host best."""
    return KvTransferParams(
        do_remote_prefill=True,
        remote_engine_id=handover.engine_id,
        remote_block_ids=list(handover.block_ids),
        remote_port=handover.port,
        transfer_id=handover.transfer_id,
    )
