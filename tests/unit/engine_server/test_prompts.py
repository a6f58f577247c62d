"""Where prompts are tokenized: at once, in any thread, or one at a time."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.engine_server.prompts import (
    PromptReader,
    inline_characters_max,
    large_characters_min,
)
from headrace.protocol.requests import ChatMessage, ChatRequest, CompletionRequest


class NamingTokenizer:
    """A tokenizer that only remembers the threads that it was called in."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def encode_chat(self, messages: Sequence[object]) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [1]

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [len(text)]


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
    await reader.chat(chat(inline_characters_max), tokenizer)
    assert tokenizer.threads == [threading.current_thread().name]


async def test_longer_texts_leave_the_loop_free(reader: PromptReader, tokenizer: Any) -> None:
    await reader.chat(chat(inline_characters_max + 1), tokenizer)
    assert tokenizer.threads[0].startswith("asyncio")


async def test_all_large_texts_share_one_thread(reader: PromptReader, tokenizer: Any) -> None:
    completion = CompletionRequest(model="m", prompt="a" * large_characters_min)
    prompts = await asyncio.gather(
        *(reader.chat(chat(large_characters_min), tokenizer) for _ in range(8)),
        reader.completion(completion, tokenizer),
    )
    assert set(tokenizer.threads) == {"large-prompts_0"}
    assert prompts[-1].token_ids == [large_characters_min]


async def test_a_large_text_whose_caller_left_is_not_tokenized(
    reader: PromptReader, tokenizer: Any
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait(_: object) -> list[int]:
        started.set()
        go_on.wait(30)
        return []

    tokenizer.encode_chat = wait
    first = asyncio.create_task(reader.chat(chat(large_characters_min), tokenizer))
    await asyncio.to_thread(started.wait, 30)
    completion = CompletionRequest(model="m", prompt="a" * large_characters_min)
    second = asyncio.create_task(reader.completion(completion, tokenizer))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first
    assert tokenizer.threads == []
