"""What a request must fulfil before it is queued, so that nothing queued can fail for its shape."""

import math

import numpy as np

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import RunnerInfo

top_logprobs_max = 20
choices_max = 128  # outputs of one request


def context_limit(info: RunnerInfo) -> int:
    """Tokens that one request may have: the model's context, or the whole pool if smaller."""
    return min(info.max_model_len, info.num_blocks * info.block_size_tokens)


def output_limits(request: EngineRequest, info: RunnerInfo) -> list[int]:
    """The output limit for each prompt, cut to what the context leaves after it.

    Raises InvalidRequest, or ContextLengthExceeded if not even one token fits."""
    check_sampling(request.sampling)
    check_token_ids(request.sampling, info.vocab_size)
    count = len(request.prompts) * request.choice_count
    if not 1 <= count <= choices_max:
        raise InvalidRequest(
            f"The request asks for {count} outputs; ask for 1 to {choices_max}.", param="n"
        )
    return [_output_limit(prompt, request.sampling, info) for prompt in request.prompts]


def _output_limit(prompt: tuple[int, ...], sampling: SamplingParams, info: RunnerInfo) -> int:
    if not prompt:
        raise InvalidRequest("The prompt has no tokens; send at least one.", param="prompt")
    limit = context_limit(info)
    if len(prompt) >= limit:
        raise ContextLengthExceeded(
            f"The prompt has {len(prompt)} tokens and this model's context holds {limit}, of "
            "which the output needs at least one. Shorten the prompt.",
            param="prompt",
            prompt_tokens=len(prompt),
            max_model_len=limit,
            max_tokens=sampling.max_tokens,
        )
    try:
        token_ids = np.array(prompt, np.int32)
    except OverflowError:
        token_ids = np.array([-1], np.int32)
    if token_ids.min() < 0 or token_ids.max() >= info.vocab_size:
        raise InvalidRequest(
            f"A token id of the prompt is outside this model's vocabulary: ids go from 0 to "
            f"{info.vocab_size - 1}.",
            param="prompt",
        )
    return min(sampling.max_tokens, limit - len(prompt))


def check_token_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequest that names the first parameter with a token that the model lacks."""
    allowed = sampling.allowed_token_ids
    token_ids = (
        ("logit_bias", [token_id for token_id, _ in sampling.logit_bias]),
        ("allowed_token_ids", [] if allowed is None else list(allowed)),
        ("stop_token_ids", list(sampling.stop_token_ids) if sampling.min_tokens else []),
        ("bad_words", [token_id for word in sampling.bad_words for token_id in word]),
    )
    for name, ids in token_ids:
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise InvalidRequest(
                f"A token id of {name} is outside this model's vocabulary: ids go from 0 to "
                f"{vocab_size - 1}.",
                param=name,
            )
    if allowed is not None and not allowed:
        raise InvalidRequest(
            "allowed_token_ids is empty; allow at least one.", param="allowed_token_ids"
        )
    counts = ("top_logprobs", sampling.top_logprobs), ("prompt_logprobs", sampling.prompt_logprobs)
    for name, count in counts:
        if count is not None and not 0 <= count <= min(top_logprobs_max, vocab_size):
            raise InvalidRequest(
                f"{name} is {count}; it must be 0 to {min(top_logprobs_max, vocab_size)}.",
                param=name,
            )


def check_sampling(sampling: SamplingParams) -> None:
    """Raise InvalidRequest that names the first parameter out of its range."""
    checks = (
        ("temperature", 0 <= sampling.temperature < math.inf, "0 or more"),
        ("top_k", 0 <= sampling.top_k < 1 << 31, "0 (off) or more"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= sampling.min_p < 1, "0 or more and below 1"),
        ("typical_p", 0 < sampling.typical_p <= 1, "above 0 and at most 1"),
        ("xtc_threshold", 0 < sampling.xtc_threshold <= 1, "above 0 and at most 1"),
        ("xtc_probability", 0 <= sampling.xtc_probability <= 1, "0 (off) to 1"),
        ("max_tokens", sampling.max_tokens >= (sampling.prompt_logprobs is None), "1 or more"),
        ("min_tokens", sampling.min_tokens >= 0, "0 or more"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "above 0"),
        ("frequency_penalty", math.isfinite(sampling.frequency_penalty), "a number"),
        ("dry_multiplier", 0 <= sampling.dry_multiplier <= 100, "0 (off) to 100"),
        ("dry_base", 1 <= sampling.dry_base <= 10, "1 to 10"),
        ("dry_allowed_length", 1 <= sampling.dry_allowed_length <= 50, "1 to 50"),
        ("presence_penalty", math.isfinite(sampling.presence_penalty), "a number"),
    )
    for name, in_range, range_text in checks:
        if not in_range:
            raise InvalidRequest(
                f"{name} is {getattr(sampling, name)}; it must be {range_text}.", param=name
            )
