"""From a parsed request to what the engine is sent: token ids, limits, sampling.

The context is checked here with the numbers the caller needs; a prompt is never truncated.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.engine_server.messages import Grammar, Submit
from headrace.protocol.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from headrace.tokenizer.tokenizer import Tokenizer

completion_max_tokens_default = 16  # OpenAI's, for text completions
inline_characters_max = 4096  # a longer text is tokenized in a thread, so that streams flow on
large_characters_min = 256 * 1024  # from here on a text is tokenized alone: 10 MB take 0.7 GB
seed_mask = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, in its own terms."""

    token_ids: list[int]
    param: str  # the request's field that it comes from, for errors


class PromptReader:
    """Makes prompts of requests: of short texts at once, of long ones in a thread.

    Large ones have one thread for them all: tokenizing takes many times a text's size in memory,
    which must not be multiplied by the callers, also if they leave and come again."""

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-prompts")

    def close(self) -> None:
        """Forget the texts that wait; the one that is being tokenized ends by itself."""
        self._large.shutdown(wait=False, cancel_futures=True)

    async def chat(self, request: ChatRequest, tokenizer: Tokenizer) -> Prompt:
        """The conversation as the model's template writes it; users' texts cannot forge turns."""
        turns = [_turn(message) for message in request.messages]
        characters = sum(len(message.text) for message in request.messages)
        return Prompt(
            await self._encode(characters, lambda: tokenizer.encode_chat(turns)), "messages"
        )

    async def completion(self, request: CompletionRequest, tokenizer: Tokenizer) -> Prompt:
        """The prompt's tokens; as text it may write control tokens, for it is the whole prompt."""
        text = request.prompts[0]
        if not isinstance(text, str):
            return Prompt(text, "prompt")
        token_ids = await self._encode(
            len(text), lambda: tokenizer.encode(text, add_special=True, parse_special=True)
        )
        return Prompt(token_ids, "prompt")

    async def _encode(self, characters: int, encode: Callable[[], list[int]]) -> list[int]:
        if characters <= inline_characters_max:
            return encode()
        if characters < large_characters_min:
            return await asyncio.to_thread(encode)
        return await asyncio.get_running_loop().run_in_executor(self._large, encode)


def submission(
    request: ChatRequest | CompletionRequest,
    prompt: Prompt,
    *,
    request_id: str,
    tokenizer: Tokenizer,
    context_length: int,
    cache_salt: str = "",
) -> Submit:
    """The engine's request; ContextLengthExceeded if prompt and output do not fit the context."""
    if request.sequences_count > 1:
        raise InvalidRequest("This server gives one answer to a request.", param="n")
    stop_token_ids = set(request.stop_token_ids or ())
    if not request.ignore_eos:
        stop_token_ids |= tokenizer.eos_ids
    seed = secrets.randbits(64) if request.seed is None else request.seed & seed_mask
    return Submit(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        seed=seed,
        max_tokens=_output_limit(request, prompt, context_length),
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
        grammar=_grammar(request),
    )


def _grammar(request: GenerationRequest) -> Grammar | None:
    """What the answer must follow; InvalidRequest if that is said twice, or the end is ignored."""
    asked = [
        grammar
        for grammar in (
            _response_format(request),
            _json_grammar("guided_json", request.guided_json),
            _text_grammar("guided_regex", "regex", request.guided_regex),
            _text_grammar("guided_grammar", "lark", request.guided_grammar),
            _choice_grammar(request.guided_choice),
        )
        if grammar is not None
    ]
    if len(asked) > 1:
        raise InvalidRequest(
            f"{asked[0].param} and {asked[1].param} both say what the answer looks like; send one.",
            param=asked[1].param,
        )
    if asked and request.ignore_eos:
        raise InvalidRequest(
            f"With {asked[0].param} the answer ends where it is complete; leave ignore_eos out.",
            param="ignore_eos",
        )
    return asked[0] if asked else None


def _response_format(request: GenerationRequest) -> Grammar | None:
    response_format = request.response_format
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return _json_grammar("response_format", {"type": "object"})
    if response_format.json_schema is None:
        raise InvalidRequest(
            "response_format of type json_schema needs json_schema.",
            param="response_format.json_schema",
        )
    schema = response_format.json_schema.schema
    return _json_grammar("response_format", {} if schema is None else schema)


def _json_grammar(param: str, schema: object) -> Grammar | None:
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar("json_schema", text, param)


def _text_grammar(param: str, kind: Literal["regex", "lark"], text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind, text, param)


def _choice_grammar(choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    alternatives = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    return Grammar("lark", f"start: {alternatives}", "guided_choice")


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _allowed(request: GenerationRequest) -> tuple[int, ...] | None:
    return None if request.allowed_token_ids is None else tuple(request.allowed_token_ids)


def _bad_words(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, as it stands after a space and as it stands after anything else."""
    words = request.bad_words or ()
    spellings = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
    return tuple({tuple(tokenizer.encode(spelling)): None for spelling in spellings})


def _turn(message: ChatMessage) -> dict[str, object]:
    """A message as templates read it; they know `developer` under its older name only."""
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, object] = {"role": role, "content": message.text}
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _output_limit(request: GenerationRequest, prompt: Prompt, context_length: int) -> int:
    prompt_count = len(prompt.token_ids)
    if not prompt_count:
        raise InvalidRequest("The prompt has no tokens; send at least one.", param=prompt.param)
    wanted = request.output_limit
    if wanted is None and isinstance(request, CompletionRequest):
        wanted = min(completion_max_tokens_default, max(1, context_length - prompt_count))
    if prompt_count + (wanted or 1) > context_length:
        raise ContextLengthExceeded(
            f"This model's context holds {context_length} tokens. The prompt has {prompt_count} "
            f"and the output may have {wanted or 1}; shorten the prompt or lower max_tokens.",
            param=prompt.param,
            prompt_tokens=prompt_count,
            max_model_len=context_length,
            max_tokens=wanted,
        )
    return context_length - prompt_count if wanted is None else wanted
