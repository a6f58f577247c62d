"""A reader of the log knows what the cache holds, however late it comes."""

import asyncio

from headrace.engine_server.cache_log import CacheLog


def name(number: int) -> bytes:
    return number.to_bytes(16)


def test_changes_come_once_in_their_order() -> None:
    log = CacheLog()
    log.add([(True, name(1)), (True, name(2)), (False, name(1))])
    assert [(c.sequence, c.stored, c.content_hash) for c in log.since(1) or []] == [
        (2, True, name(2)),
        (3, False, name(1)),
    ]
    assert log.since(3) == []
    assert log.held == (name(2),)


def test_who_was_away_too_long_or_saw_the_future_starts_anew() -> None:
    log = CacheLog(changes_max=3)
    log.add([(True, name(number)) for number in range(5)])
    assert log.since(1) is None
    assert log.since(6) is None
    assert len(log.since(2) or []) == 3
    assert len(log.held) == 5


def test_a_lost_engine_is_one_change() -> None:
    log = CacheLog()
    log.clear()
    assert log.last_sequence == 0
    log.add([(True, name(1))])
    log.clear()
    (change,) = log.since(1) or []
    assert change.content_hash is None
    assert log.held == ()


async def test_a_reader_waits_for_the_next_change() -> None:
    log = CacheLog()
    waiting = asyncio.create_task(log.wait_beyond(0, timeout_s=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.add([(True, name(1))])
    await waiting
    assert len(log.since(0) or []) == 1
    await log.wait_beyond(1, timeout_s=0.001)
