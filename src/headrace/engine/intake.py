"""What a request must fulfil before it is queued, so that nothing queued can fail for its shape."""

import math

import numpy as np

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import RunnerInfo


def context_limit(info: RunnerInfo) -> int:
    """Tokens that one request may have: the model's context, or the whole pool if smaller."""
    return min(info.max_model_len, info.num_blocks * info.block_size_tokens)


def accepted_max_tokens(request: EngineRequest, info: RunnerInfo) -> int:
    """The request's output limit, cut to what the context leaves after its prompt.

    Raises InvalidRequest, or ContextLengthExceeded if not even one token fits."""
    check_sampling(request.sampling)
    prompt_count = len(request.prompt_token_ids)
    if not prompt_count:
        raise InvalidRequest("The prompt has no tokens; send at least one.", param="prompt")
    limit = context_limit(info)
    if prompt_count >= limit:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_count} tokens and this model's context holds {limit}, of "
            "which the output needs at least one. Shorten the prompt.",
            param="prompt",
            prompt_tokens=prompt_count,
            max_model_len=limit,
            max_tokens=request.sampling.max_tokens,
        )
    try:
        token_ids = np.array(request.prompt_token_ids, np.int32)
    except OverflowError:
        token_ids = np.array([-1], np.int32)
    if token_ids.min() < 0 or token_ids.max() >= info.vocab_size:
        raise InvalidRequest(
            f"A token id of the prompt is outside this model's vocabulary: ids go from 0 to "
            f"{info.vocab_size - 1}.",
            param="prompt",
        )
    return min(request.sampling.max_tokens, limit - prompt_count)


def check_sampling(sampling: SamplingParams) -> None:
    """Raise InvalidRequest that names the first parameter out of its range."""
    checks = (
        ("temperature", 0 <= sampling.temperature < math.inf, "0 or more"),
        ("top_k", 0 <= sampling.top_k < 1 << 31, "0 (off) or more"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= sampling.min_p < 1, "0 or more and below 1"),
        ("max_tokens", sampling.max_tokens >= 1, "1 or more"),
        ("min_tokens", sampling.min_tokens >= 0, "0 or more"),
    )
    for name, in_range, range_text in checks:
        if not in_range:
            raise InvalidRequest(
                f"{name} is {getattr(sampling, name)}; it must be {range_text}.", param=name
            )
