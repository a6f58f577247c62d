"""The engine's own values as messages, and messages as the engine's own values."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from headrace.engine.core import EngineCore
from headrace.engine.request import (
    Adapter,
    EngineRequest,
    OutputEnd,
    RequestOutput,
    SamplingParams,
    ThoughtBudget,
    TokenConstraint,
    TokenLogprobs,
)
from headrace.engine_server import messages


def engine_request(
    message: messages.Submit,
    constraint: TokenConstraint | None,
    now_s: float,
    adapter: Adapter | None,
    output_end: OutputEnd | None = None,
) -> EngineRequest:
    """What the engine is asked for by a `Submit`."""
    return EngineRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=SamplingParams(
            temperature=message.temperature,
            top_k=message.top_k,
            top_p=message.top_p,
            min_p=message.min_p,
            typical_p=message.typical_p,
            xtc_threshold=message.xtc_threshold,
            xtc_probability=message.xtc_probability,
            seed=message.seed,
            max_tokens=message.max_tokens,
            min_tokens=message.min_tokens,
            stop_token_ids=frozenset(message.stop_token_ids),
            repetition_penalty=message.repetition_penalty,
            frequency_penalty=message.frequency_penalty,
            presence_penalty=message.presence_penalty,
            logit_bias=message.logit_bias,
            allowed_token_ids=_frozen(message.allowed_token_ids),
            bad_words=message.bad_words,
            top_logprobs=message.top_logprobs,
            prompt_logprobs=message.prompt_logprobs,
            ignore_eos=message.ignore_eos,
            dry_multiplier=message.dry_multiplier,
            dry_base=message.dry_base,
            dry_allowed_length=message.dry_allowed_length,
            dry_breakers=frozenset(message.dry_breakers),
            thought_budget=_thought_budget(message.thought_budget),
        ),
        priority=message.priority,
        cache_salt=message.cache_salt,
        constraint=constraint,
        choice_count=message.choice_count,
        more_prompts=message.more_prompts,
        deadline_s=None if message.timeout_s is None else now_s + message.timeout_s,
        adapter=adapter,
        hands_over=message.hands_over,
        output_end=output_end,
    )


def _thought_budget(budget: messages.ThoughtBudget | None) -> ThoughtBudget | None:
    if budget is None:
        return None
    return ThoughtBudget(budget.token_count, budget.closing_id, budget.opening_id)


def _frozen(token_ids: tuple[int, ...] | None) -> frozenset[int] | None:
    return None if token_ids is None else frozenset(token_ids)


def wire_output(
    output: RequestOutput, handover: messages.KvHandover | None = None
) -> messages.Output:
    """An output as it is sent, with where its prompt's KV waits, if it does."""
    usage = output.usage
    return messages.Output(
        output.request_id,
        list(output.token_ids),
        output.finish_reason,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        output.error,
        output.queue_s,
        _wire_logprobs(output.logprobs),
        output.index,
        output.cumulative_logprob,
        _wire_logprobs(output.prompt_logprobs),
        output.is_callers_error,
        usage.accepted_drafts,
        usage.refused_drafts,
        handover=handover,
    )


def _wire_logprobs(tokens: tuple[TokenLogprobs, ...]) -> tuple[messages.WireLogprobs, ...]:
    return tuple((token.logprob, token.top) for token in tokens)


def wire_stats(
    core: EngineCore,
    grammars_waiting: int,
    fetches_waiting: int = 0,
    transfers: Mapping[str, int] = MappingProxyType({}),
) -> messages.Stats:
    """The counters as they are sent.

    So many requests wait for their grammar, so many for their KV; `transfers` of KV ended, by
    result, that the engine itself does not count."""
    stats = core.stats()
    sent = messages.Stats(
        **{name: getattr(stats, name) for name in messages.Stats.__struct_fields__}
    )
    return msgspec.structs.replace(
        sent,
        waiting_requests=sent.waiting_requests + grammars_waiting + fetches_waiting,
        waiting_by_reason={
            **sent.waiting_by_reason,
            "grammar": grammars_waiting,
            "kv_transfer": fetches_waiting,
        },
        kv_transfers=dict(Counter(sent.kv_transfers) + Counter(transfers)),
    )
