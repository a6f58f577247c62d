"""A preempted request loses its deepest blocks first, and gets back what nobody took."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.request import SamplingParams

Make = Callable[..., Any]


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def pressed(request: pytest.FixtureRequest, make_engine: Make) -> Any:
    """A low request that has computed 18 tokens in 5 of 8 blocks of 4 when a high one needs 5."""
    engine = make_engine(num_blocks=8, max_model_len=32, caching=request.param, running_max=4)
    engine.submit("low", 15, max_tokens=6, priority=1)
    engine.step(4)
    assert engine.core.stats().kv_blocks_used == 5
    engine.submit("high", 17, max_tokens=2)
    return engine


def test_only_the_tail_is_computed_again(pressed: Any) -> None:
    pressed.run()
    stats = pressed.core.stats()
    assert stats.preemptions_total == 1
    assert stats.recomputed_tokens_total == 18 - 3 * 4  # two of its five blocks were taken
    for name in ("low", "high"):
        assert pressed.tokens[name] == pressed.expected(name)


def test_what_an_aborted_one_left_is_free(pressed: Any) -> None:
    pressed.step()
    pressed.core.abort("low")
    pressed.run()
    assert pressed.core.stats().kv_blocks_used == 0
    assert pressed.tokens["high"] == pressed.expected("high")


def test_it_holds_nothing_that_another_needs(make_engine: Make) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32, caching=False, running_max=4)
    engine.submit("low", 15, max_tokens=6, priority=1)
    engine.step(4)
    engine.submit("high", 28, max_tokens=4)
    engine.run()
    assert engine.core.stats().recomputed_tokens_total == 18  # all of it was taken
    for name in ("low", "high"):
        assert engine.tokens[name] == engine.expected(name)


def test_log_probabilities_of_the_prompt_go_on_where_they_were(make_engine: Make) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32, rows_max=8, running_max=4)
    sampling = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1)
    engine.submit("low", 20, sampling=sampling, priority=1)
    engine.step(2)  # 5 and 8 tokens in 4 blocks: the last will be taken
    engine.submit("high", 17, max_tokens=2)
    noted: list[object] = []
    while engine.core.has_work():
        for output in engine.core.step():
            noted += output.prompt_logprobs
            engine.tokens[output.request_id] += output.token_ids
    assert engine.core.stats().preemptions_total == 1
    assert engine.core.stats().recomputed_tokens_total == 13 - 3 * 4
    assert len(noted) == 19
    assert engine.tokens["low"] == engine.expected("low")
