from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]


def test_who_waits_is_told_by_reason_and_class(make_engine: Make) -> None:
    engine = make_engine(num_blocks=6, max_model_len=24, running_max=2)
    engine.submit("running", 18, max_tokens=5)
    engine.step()
    engine.submit("same", 18, max_tokens=3)
    engine.submit("later", 18, max_tokens=3, priority=2)
    engine.submit("last", 18, max_tokens=3, priority=500)
    engine.step()
    stats = engine.core.stats()
    assert stats.waiting_by_reason == {"capacity": 3, "deferred": 0, "preempted": 0}
    assert stats.waiting_by_class == {"0": 1, "2": 1, "8": 1}
    assert sum(stats.waiting_by_class.values()) == stats.waiting_requests
    engine.submit("above", 18, max_tokens=3, priority=-7)
    engine.step()
    stats = engine.core.stats()
    assert stats.waiting_by_reason["preempted"] == 1
    assert stats.waiting_by_class == {"0": 2, "2": 1, "8": 1}


def test_those_that_wait_for_a_shared_prefix_are_deferred(make_engine: Make) -> None:
    engine = make_engine(rows_max=16)
    prompt = tuple(range(12))
    engine.submit("first", prompt, max_tokens=3)
    engine.submit("second", prompt, max_tokens=3)
    engine.step()
    stats = engine.core.stats()
    assert stats.waiting_by_reason == {"capacity": 0, "deferred": 1, "preempted": 0}
    engine.run()
    assert engine.last["second"].usage.cached_tokens > 0


def test_nobody_waits_where_nobody_is(make_engine: Make) -> None:
    stats = make_engine().core.stats()
    assert sum(stats.waiting_by_reason.values()) == 0
    assert stats.waiting_by_class == {}
