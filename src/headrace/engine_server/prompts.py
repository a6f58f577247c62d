"""From a parsed request to its prompts: token ids, tokenized where streams are not held up.

A text that cannot fit the context is refused by its size alone, before it is tokenized.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from headrace.base.errors import ContextLengthExceeded
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.turns import template_variables, tools_of, turns_of
from headrace.protocol.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.tokenizer.tokenizer import Tokenizer

inline_characters_max = 4096  # a longer text is tokenized in a thread, so that streams flow on
large_characters_min = 256 * 1024  # from here on a text is tokenized alone: 10 MB take 0.7 GB


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, in its own terms."""

    token_ids: list[int]
    param: str  # the request's field that it comes from, for errors
    text: str | None = None  # as it was sent, if it was a text
    dropped_count: int = 0  # tokens cut from its beginning, as the caller asked


class PromptReader:
    """Makes prompts of one model's requests: of short texts at once, of long ones in a thread.

    Large ones have one thread for them all: tokenizing takes many times a text's size in memory,
    which must not be multiplied by the callers, also if they leave and come again."""

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-prompts")
        self._token_bytes_max: int | None = None  # of the longest token, once it is needed

    def close(self) -> None:
        """Forget the texts that wait; the one that is being tokenized ends by itself."""
        self._large.shutdown(wait=False, cancel_futures=True)

    async def read(
        self,
        request: ChatRequest | CompletionRequest,
        tokenizer: Tokenizer,
        dialect: Dialect,
        context_length: int,
    ) -> list[Prompt]:
        """The request's prompts; ContextLengthExceeded if one is too long whatever its tokens."""
        if isinstance(request, ChatRequest):
            prompts = [await self._chat(request, tokenizer, dialect, context_length)]
        else:
            prompts = [
                await self._completion(prompt, request, tokenizer, context_length)
                for prompt in request.prompts
            ]
        return [_truncated(prompt, request.truncate_prompt_tokens) for prompt in prompts]

    async def _chat(
        self, request: ChatRequest, tokenizer: Tokenizer, dialect: Dialect, context_length: int
    ) -> Prompt:
        """The conversation as the model's template writes it; users' texts cannot forge turns."""
        tools = tools_of(request)
        characters = sum(message.size_characters for message in request.messages)
        if tools:
            characters += len(msgspec.json.encode(tools))
        said = sum(len(message.text) for message in request.messages)  # templates leave none out
        self._check_size("messages", said, request, tokenizer, context_length)
        turns = turns_of(request, dialect)
        variables = template_variables(request)
        token_ids = await self._encode(
            characters,
            lambda: tokenizer.encode_chat(
                turns, tools=tools if dialect.template_has_tools else None, variables=variables
            ),
        )
        return Prompt(token_ids, "messages")

    async def _completion(
        self,
        prompt: str | list[int],
        request: CompletionRequest,
        tokenizer: Tokenizer,
        context_length: int,
    ) -> Prompt:
        """The prompt's tokens; as text it may write control tokens, for it is the whole prompt."""
        if request.suffix:
            return await self._gap(prompt, request.suffix, request, tokenizer, context_length)
        if not isinstance(prompt, str):
            return Prompt(prompt, "prompt")
        self._check_size("prompt", len(prompt), request, tokenizer, context_length)
        token_ids = await self._encode(
            len(prompt), lambda: tokenizer.encode(prompt, add_special=True, parse_special=True)
        )
        return Prompt(token_ids, "prompt", prompt)

    async def _gap(
        self,
        before: str | list[int],
        after: str,
        request: CompletionRequest,
        tokenizer: Tokenizer,
        context_length: int,
    ) -> Prompt:
        """The prompt for what is between two texts."""
        characters = len(after) + (len(before) if isinstance(before, str) else 0)
        self._check_size("prompt", characters, request, tokenizer, context_length)
        token_ids = await self._encode(characters, lambda: tokenizer.encode_gap(before, after))
        return Prompt(token_ids, "prompt")

    def _check_size(
        self,
        param: str,
        characters: int,
        request: GenerationRequest,
        tokenizer: Tokenizer,
        context_length: int,
    ) -> None:
        """Refuse what even the longest tokens cannot fit into the context.

        A character is at least one byte, so the characters are a lower bound of the bytes."""
        if characters <= large_characters_min or request.truncate_prompt_tokens is not None:
            return
        if self._token_bytes_max is None:
            ids = range(tokenizer.vocab_size)
            self._token_bytes_max = max(len(tokenizer.token_bytes(token_id)) for token_id in ids)
        tokens_min = characters // self._token_bytes_max
        if tokens_min < context_length:
            return
        wanted = request.output_limit
        raise ContextLengthExceeded(
            f"This model's context holds {context_length} tokens. The prompt has at least "
            f"{tokens_min} and the output may have {wanted or 1}; shorten the prompt.",
            param=param,
            prompt_tokens=tokens_min,
            prompt_tokens_are_at_least=True,
            max_model_len=context_length,
            max_tokens=wanted,
        )

    async def _encode(self, characters: int, encode: Callable[[], list[int]]) -> list[int]:
        if characters <= inline_characters_max:
            return encode()
        if characters < large_characters_min:
            return await asyncio.to_thread(encode)
        return await asyncio.get_running_loop().run_in_executor(self._large, encode)


def _truncated(prompt: Prompt, tokens_max: int | None) -> Prompt:
    """The prompt's last tokens, where the caller asked for no more."""
    if tokens_max is None or len(prompt.token_ids) <= tokens_max:
        return prompt
    dropped = len(prompt.token_ids) - tokens_max
    return Prompt(prompt.token_ids[dropped:], prompt.param, None, dropped)
