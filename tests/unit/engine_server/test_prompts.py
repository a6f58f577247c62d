"""Where prompts are tokenized: at once, in any thread, or one at a time."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.base.errors import ContextLengthExceeded
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.prompts import (
    Prompt,
    PromptReader,
    inline_characters_max,
    large_characters_min,
)
from headrace.protocol.requests import ChatMessage, ChatRequest, CompletionRequest


class NamingTokenizer:
    """A tokenizer that only remembers the threads that it was called in."""

    vocab_size = 3

    def __init__(self) -> None:
        self.threads: list[str] = []

    def token_bytes(self, token_id: int) -> bytes:
        return b"12345678"[: token_id * 4]

    def encode_chat(self, messages: Sequence[object], **_: object) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [1]

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [len(text)]


dialect = Dialect(None, None, template_has_tools=True, shown_ids=frozenset())
context = 8192
large_context = 4 * large_characters_min


async def read(
    reader: PromptReader,
    request: ChatRequest | CompletionRequest,
    tokenizer: Any,
    context_length: int = large_context,
) -> list[Prompt]:
    return await reader.read(request, tokenizer, dialect, context_length)


@pytest.fixture
def tokenizer() -> Any:
    return NamingTokenizer()


@pytest.fixture
def reader() -> Iterator[PromptReader]:
    reader = PromptReader()
    yield reader
    reader.close()


def chat(characters: int) -> ChatRequest:
    return ChatRequest(model="m", messages=[ChatMessage(role="user", content="a" * characters)])


async def test_short_texts_are_tokenized_at_once(reader: PromptReader, tokenizer: Any) -> None:
    await read(reader, chat(inline_characters_max), tokenizer)
    assert tokenizer.threads == [threading.current_thread().name]


async def test_longer_texts_leave_the_loop_free(reader: PromptReader, tokenizer: Any) -> None:
    await read(reader, chat(inline_characters_max + 1), tokenizer)
    assert tokenizer.threads[0].startswith("asyncio")


async def test_all_large_texts_share_one_thread(reader: PromptReader, tokenizer: Any) -> None:
    completion = CompletionRequest(model="m", prompt="a" * large_characters_min)
    prompts = await asyncio.gather(
        *(read(reader, chat(large_characters_min), tokenizer) for _ in range(8)),
        read(reader, completion, tokenizer),
    )
    assert set(tokenizer.threads) == {"large-prompts_0"}
    assert prompts[-1][0].token_ids == [large_characters_min]


async def test_a_large_text_whose_caller_left_is_not_tokenized(
    reader: PromptReader, tokenizer: Any
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> list[int]:
        started.set()
        go_on.wait(30)
        return []

    tokenizer.encode_chat = wait
    first = asyncio.create_task(read(reader, chat(large_characters_min), tokenizer))
    await asyncio.to_thread(started.wait, 30)
    completion = CompletionRequest(model="m", prompt="a" * large_characters_min)
    second = asyncio.create_task(read(reader, completion, tokenizer))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first
    assert tokenizer.threads == []


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_what_cannot_fit_is_refused_by_its_size_alone(
    reader: PromptReader, tokenizer: Any, kind: str
) -> None:
    text = "a" * 10_000_000
    request = (
        CompletionRequest(model="m", prompt=text, max_tokens=5)
        if kind == "completion"
        else ChatRequest(model="m", messages=[ChatMessage("user", text)], max_tokens=5)
    )
    with pytest.raises(ContextLengthExceeded) as refused:
        await read(reader, request, tokenizer, context)
    assert tokenizer.threads == []
    assert "at least 1250000" in refused.value.message
    assert refused.value.fields["prompt_tokens"] == 1_250_000
    assert refused.value.fields["max_model_len"] == context
    assert refused.value.fields["max_tokens"] == 5


async def test_what_might_fit_is_tokenized(reader: PromptReader, tokenizer: Any) -> None:
    request = CompletionRequest(model="m", prompt="a" * (large_characters_min + 1))
    (prompt,) = await read(reader, request, tokenizer, large_characters_min)
    assert prompt.token_ids == [large_characters_min + 1]


async def test_a_prompt_is_cut_only_where_the_caller_asks(
    reader: PromptReader, tokenizer: Any
) -> None:
    request = CompletionRequest(model="m", prompt=[[1, 2, 3], [4]], truncate_prompt_tokens=2)
    first, second = await read(reader, request, tokenizer)
    assert (first.token_ids, first.dropped_count) == ([2, 3], 1)
    assert (second.token_ids, second.dropped_count) == ([4], 0)
