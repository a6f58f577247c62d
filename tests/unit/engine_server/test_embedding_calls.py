import asyncio

import numpy as np
import pytest

from headrace.base.errors import RateLimited, Unavailable
from headrace.engine_server.embedding_calls import EmbeddingCalls
from headrace.engine_server.messages import Embedded


def packed(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


async def test_each_call_gets_its_own_vectors() -> None:
    calls = EmbeddingCalls(2)
    first, firsts = calls.open([[1]])
    second, seconds = calls.open([[2], [3]])
    calls.answer(Embedded(second.call_id, [packed(0.5), packed(0.25)]))
    calls.answer(Embedded(first.call_id, [packed(1.0)]))
    assert await firsts == [[1.0]]
    assert await seconds == [[0.5], [0.25]]


async def test_too_many_calls_are_refused_until_one_ends() -> None:
    calls = EmbeddingCalls(1)
    call, vectors = calls.open([[1]])
    with pytest.raises(RateLimited):
        calls.open([[1]])
    calls.answer(Embedded(call.call_id, [packed(1.0)]))
    await vectors
    calls.open([[1]])


async def test_who_left_is_not_answered_and_takes_no_room() -> None:
    calls = EmbeddingCalls(1)
    call, vectors = calls.open([[1]])
    vectors.cancel()
    calls.answer(Embedded(call.call_id, [packed(1.0)]))
    await asyncio.sleep(0)  # one turn of the loop, which takes it off the list
    assert vectors.cancelled()
    calls.open([[1]])


async def test_an_engine_that_ends_fails_them_all() -> None:
    calls = EmbeddingCalls(1)
    _, vectors = calls.open([[1]])
    calls.fail_all(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await vectors
    assert not calls.fail("r", Unavailable("gone"))
