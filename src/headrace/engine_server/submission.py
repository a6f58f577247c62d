"""From a request and its prompts to what the engine is sent: limits, sampling, grammar.

The context is checked here with the numbers the caller needs; a prompt is never truncated unasked.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.engine_server.answer_shape import answer_grammar
from headrace.engine_server.dialect import Dialect, prompt_tail
from headrace.engine_server.dry_breakers import default_breakers
from headrace.engine_server.forced_calls import forced_calls
from headrace.engine_server.kv_params import with_transfer
from headrace.engine_server.messages import Grammar, Submit, ThoughtBudget
from headrace.engine_server.prompts import Prompt
from headrace.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from headrace.tokenizer.tokenizer import Tokenizer

completion_max_tokens_default = 16  # OpenAI's, for text completions
dry_base_default = 1.75
dry_allowed_length_default = 2
xtc_threshold_default = 0.1  # llama.cpp's, as are those of DRY
seed_mask = 2**64 - 1
Number = TypeVar("Number", int, float)

# The tokens that have one of these texts in them.
FindBreakers = Callable[[Sequence[str]], tuple[int, ...]]


def submission(
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[Prompt],
    *,
    request_id: str,
    tokenizer: Tokenizer,
    dialect: Dialect,
    context_length: int,
    vocab_size: int,
    find_breakers: FindBreakers,
    cache_salt: str = "",
    adapter: str | None = None,
    shown_ids: frozenset[int] | None = frozenset(),
) -> Submit:
    """The engine's request; ContextLengthExceeded if prompt and output do not fit the context.

    `vocab_size` counts what the model can give: more than the tokenizer has, in some."""
    _check_stops(request.stop_token_ids or (), vocab_size)
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    first, *more = (prompt.token_ids for prompt in prompts)
    stop_token_ids = set(request.stop_token_ids or ())
    if not request.ignore_eos:
        stop_token_ids |= tokenizer.eos_ids
        if isinstance(request, CompletionRequest) and request.suffix and tokenizer.fill:
            stop_token_ids |= tokenizer.fill.end_ids
    seed = secrets.randbits(64) if request.seed is None else request.seed & seed_mask
    submit = Submit(
        request_id=request_id,
        prompt_token_ids=first,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        seed=seed,
        max_tokens=_output_limit(request, longest, context_length),
        min_tokens=request.min_tokens or 0,
        stop_token_ids=sorted(stop_token_ids),
        cache_salt=cache_salt,
        repetition_penalty=_or_default(request.repetition_penalty, 1.0),
        frequency_penalty=_or_default(request.frequency_penalty, 0.0),
        presence_penalty=_or_default(request.presence_penalty, 0.0),
        logit_bias=tuple((int(key), bias) for key, bias in (request.logit_bias or {}).items()),
        allowed_token_ids=_allowed(request),
        bad_words=_bad_words(request, tokenizer),
        top_logprobs=request.top_logprobs_count,
        grammar=answer_grammar(request, _forced(request, dialect, tokenizer, first)),
        choice_count=request.sequences_count // len(prompts),
        more_prompts=tuple(tuple(token_ids) for token_ids in more),
        priority=request.priority or 0,
        timeout_s=None if request.deadline_ms is None else request.deadline_ms / 1000,
        prompt_logprobs=_prompt_logprobs(request),
        ignore_eos=bool(request.ignore_eos),
        dry_multiplier=request.dry_multiplier or 0.0,
        dry_base=_or_default(request.dry_base, dry_base_default),
        dry_allowed_length=_or_default(request.dry_allowed_length, dry_allowed_length_default),
        dry_breakers=_breakers(request, find_breakers),
        thought_budget=_thought_budget(request, dialect, tokenizer, first),
        adapter=adapter,
        typical_p=_or_default(request.typical_p, 1.0),
        xtc_threshold=_or_default(request.xtc_threshold, xtc_threshold_default),
        xtc_probability=_or_default(request.xtc_probability, 0.0),
        stop_strings=request.stop_strings,
        shown_ids=None if shown_ids is None else tuple(sorted(shown_ids)),
    )
    if submit.min_tokens > submit.max_tokens:
        raise InvalidRequest(
            f"min_tokens ({submit.min_tokens}) is more than the output may have "
            f"({submit.max_tokens}); lower it, or raise max_tokens.",
            param="min_tokens",
        )
    return with_transfer(submit, request.kv_transfer_params)


def _check_stops(token_ids: Sequence[int], vocab_size: int) -> None:
    """InvalidRequest if a token is to end the output that this model cannot give.

    The engine does not look: the ends that a model's file names may be beyond what it gives."""
    if token_ids and max(token_ids) >= vocab_size:
        raise InvalidRequest(
            f"A token id of stop_token_ids is outside this model's vocabulary: ids go from 0 to "
            f"{vocab_size - 1}.",
            param="stop_token_ids",
        )


def _breakers(request: GenerationRequest, find_breakers: FindBreakers) -> tuple[int, ...]:
    """The tokens that end a repetition; a vocabulary is only searched where DRY is asked for."""
    if not request.dry_multiplier:
        return ()
    texts = request.dry_sequence_breakers
    return find_breakers(default_breakers if texts is None else texts)


def _thought_budget(
    request: GenerationRequest, dialect: Dialect, tokenizer: Tokenizer, token_ids: Sequence[int]
) -> ThoughtBudget | None:
    if not isinstance(request, ChatRequest) or request.reasoning_budget is None:
        return None
    tail = prompt_tail(tokenizer, token_ids)
    return dialect.thought_budget(request.reasoning_budget, tokenizer, tail)


def _forced(
    request: ChatRequest | CompletionRequest,
    dialect: Dialect,
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
) -> Grammar | None:
    if isinstance(request, CompletionRequest):
        return None
    return forced_calls(request, dialect, prompt_tail(tokenizer, token_ids))


def _prompt_logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    """Likeliest tokens to list for each of the prompt's; an echo with logprobs needs them, too."""
    if request.prompt_logprobs is not None:
        return request.prompt_logprobs
    if isinstance(request, CompletionRequest) and request.echo:
        return 0 if request.logprobs is None and request.max_tokens == 0 else request.logprobs
    return None


def _or_default(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _allowed(request: GenerationRequest) -> tuple[int, ...] | None:
    return None if request.allowed_token_ids is None else tuple(request.allowed_token_ids)


def _bad_words(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, as it stands after a space and as it stands after anything else."""
    words = request.bad_words or ()
    spellings = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
    return tuple({tuple(tokenizer.encode(spelling)): None for spelling in spellings})


def _output_limit(request: GenerationRequest, prompt: Prompt, context_length: int) -> int:
    prompt_count = len(prompt.token_ids)
    if not prompt_count:
        raise InvalidRequest("The prompt has no tokens; send at least one.", param=prompt.param)
    wanted = request.output_limit
    if wanted is None and isinstance(request, CompletionRequest):
        wanted = min(completion_max_tokens_default, max(1, context_length - prompt_count))
    if prompt_count + (1 if wanted is None else wanted) > context_length:
        raise ContextLengthExceeded(
            f"This model's context holds {context_length} tokens. The prompt has {prompt_count} "
            f"and the output may have {wanted or 1}; shorten the prompt or lower max_tokens.",
            param=prompt.param,
            prompt_tokens=prompt_count,
            max_model_len=context_length,
            max_tokens=wanted,
        )
    return context_length - prompt_count if wanted is None else wanted
