import asyncio

import pytest

from headrace.base.errors import RateLimited, Unavailable
from headrace.engine_server.pending_calls import PendingCalls


async def test_each_call_gets_its_own_answer() -> None:
    calls = PendingCalls[str]("call", 2)
    first, firsts = calls.open()
    second, seconds = calls.open()
    calls.answer(second, "two")
    calls.answer(first, "one")
    assert (await firsts, await seconds) == ("one", "two")


async def test_too_many_calls_are_refused_until_one_ends() -> None:
    calls = PendingCalls[str]("call", 1)
    call_id, answer = calls.open()
    with pytest.raises(RateLimited):
        calls.open()
    calls.answer(call_id, "done")
    await answer
    calls.open()


async def test_who_left_is_not_answered_and_takes_no_room() -> None:
    calls = PendingCalls[str]("call", 1)
    call_id, answer = calls.open()
    answer.cancel()
    calls.answer(call_id, "late")
    await asyncio.sleep(0)  # one turn of the loop, which takes it off the list
    assert answer.cancelled()
    calls.open()


async def test_an_engine_that_ends_fails_them_all() -> None:
    calls = PendingCalls[str]("call", 1)
    call_id, answer = calls.open()
    calls.fail_all(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await answer
    assert not calls.fail(call_id, Unavailable("gone"))
