"""Whether a request fits its model's context: what is certain is refused before an engine is asked.

    prompt   its exact count where an engine was asked for one, else the fewest tokens that it can
             have: token ids are counted, a text has one
    limit    what the caller asked for. Prompt and limit beyond the context are refused, as OpenAI
             and vLLM do

Most engines check the rest themselves, with the real count. Where one does not (Transformers ends
its generation loop, and with it everybody's requests), the limit is lowered to what is left. No
gateway can count for such an engine, so the prompt is taken at its bytes, which bound it; where
they leave less than half the context, at the typical share of them, since refusing what fits would
be worse. A text of unusually short tokens can then still be too long.
"""

from typing import NamedTuple

from headrace.base.errors import ContextLengthExceeded
from headrace.protocol.requests import ChatRequest, CompletionRequest

bytes_per_token = 4  # typical; estimates, never money


class Context(NamedTuple):
    """What holds a model's prompt and output."""

    length: int | None = None  # in tokens; None: nobody has told
    is_checked: bool = True  # by every engine of the model


unknown_context = Context()


def check_fits(
    request: ChatRequest | CompletionRequest, context: Context, prompt_tokens: int | None
) -> None:
    """ContextLengthExceeded if the request cannot fit, whatever its text's tokens are.

    `prompt_tokens` is an exact count."""
    if context.length is None:
        return
    least = kept(request, prompt_tokens_min(request) if prompt_tokens is None else prompt_tokens)
    asked = request.output_limit
    if least + (1 if asked is None else asked) > context.length:
        has = "at least" if prompt_tokens is None else ""
        raise too_long(request, context.length, least, has)


def output_left(
    request: ChatRequest | CompletionRequest,
    context: Context,
    prompt_tokens_max: int,
    prompt_tokens: int | None,
) -> int | None:
    """The most output tokens that the context has room for; None: the engine sees to it.

    `prompt_tokens_max` bounds the longest prompt, `prompt_tokens` is an exact count.
    ContextLengthExceeded if the prompt leaves none."""
    length = context.length
    if length is None or (context.is_checked and prompt_tokens is None):
        return None
    if prompt_tokens is None:
        is_short = 2 * prompt_tokens_max <= length
        prompt_tokens = prompt_tokens_max if is_short else prompt_tokens_max // bytes_per_token
    prompt_tokens = kept(request, prompt_tokens)
    if prompt_tokens >= length:
        raise too_long(request, length, prompt_tokens, "about")
    return length - prompt_tokens


def prompt_tokens_min(request: ChatRequest | CompletionRequest) -> int:
    """The fewest tokens that the longest of the prompts can have."""
    if isinstance(request, ChatRequest):
        return 1
    return max(1 if isinstance(prompt, str) else len(prompt) for prompt in request.prompts)


def kept(request: ChatRequest | CompletionRequest, prompt_tokens: int) -> int:
    """What is left of a prompt that the caller lets the engine cut."""
    most = request.truncate_prompt_tokens
    return prompt_tokens if most is None else min(prompt_tokens, most)


def too_long(
    request: ChatRequest | CompletionRequest, length: int, prompt_tokens: int, how_exact: str
) -> ContextLengthExceeded:
    """The refusal, with the numbers that the caller needs."""
    asked = request.output_limit
    if asked is not None and asked >= length:
        param, advice = "max_tokens", "lower max_tokens"
    else:
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        advice = "shorten the prompt or lower max_tokens"
    has = f"has {how_exact}".rstrip()
    return ContextLengthExceeded(
        f"This model's context holds {length} tokens. The prompt {has} {prompt_tokens} and the "
        f"output may have {asked or 1}; {advice}.",
        param=param,
        prompt_tokens=prompt_tokens,
        max_model_len=length,
        max_tokens=asked,
    )
