"""Several outputs of a prompt and several prompts in a request: shared work, separate answers."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest, RateLimited
from headrace.engine.request import FinishReason, RequestUsage, SamplingParams

Make = Callable[..., Any]
drawn = SamplingParams(temperature=0.7, seed=11, max_tokens=6)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("prompt", [1, 4, 5, 23])
def test_choices_are_those_of_separate_seeds_and_the_prompt_is_computed_once(
    make_engine: Make, caching: bool, prompt: int
) -> None:
    engine = make_engine(caching=caching)
    engine.submit("a", prompt, sampling=drawn, choice_count=4)
    engine.run()
    names = ["a", "a#1", "a#2", "a#3"]
    assert [engine.tokens[name] for name in names] == [engine.expected(name) for name in names]
    assert len({tuple(engine.tokens[name]) for name in names}) == 4
    # The prompt once, its last token for each other choice again, then all outputs but the last.
    assert engine.runner.rows == prompt + 3 + 4 * 5


def test_the_choices_usages_add_up_to_the_prompt_once(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 9, sampling=drawn, choice_count=3)
    engine.run()
    assert engine.last["a"].usage == RequestUsage(9, 0, 6)
    assert engine.last["a#1"].usage == engine.last["a#2"].usage == RequestUsage(0, 0, 6)
    stats = engine.core.stats()
    assert (stats.prompt_tokens_total, stats.completion_tokens_total) == (9, 18)


def test_choices_share_the_prompts_blocks(make_engine: Make) -> None:
    engine = make_engine(caching=False)
    engine.submit("a", 17, sampling=drawn, choice_count=4)
    engine.step(2)
    # Four full blocks of the prompt for all, and one with its last token for each.
    assert engine.core.stats().kv_blocks_used == 4 + 4


def test_a_prompt_is_counted_by_another_choice_if_the_first_one_left(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 9, sampling=drawn, choice_count=2)
    engine.core.abort("a", 0)
    engine.run()
    assert engine.last["a"].usage == RequestUsage(0, 0, 0)
    assert engine.last["a#1"].usage == RequestUsage(9, 0, 6)
    assert engine.tokens["a#1"] == engine.expected("a#1")


def test_one_choice_ends_and_the_others_go_on(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 9, sampling=drawn, choice_count=3)
    engine.step(3)
    engine.core.abort("a", 1)
    engine.run()
    reasons = [engine.reason(name) for name in ("a", "a#1", "a#2")]
    assert reasons == [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.LENGTH]


def test_an_abort_without_an_index_ends_every_choice(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 9, sampling=drawn, choice_count=3, more_prompts=((1, 2, 3),))
    engine.step(2)
    engine.core.abort("a")
    engine.step()
    assert not engine.core.has_work()
    assert len(engine.finish_order) == 6
    assert engine.core.stats().kv_blocks_used == 0


def test_several_prompts_are_answered_by_their_place(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", (1, 2), sampling=drawn, choice_count=2, more_prompts=((3, 4, 5), (6,) * 9))
    engine.run()
    assert len(engine.finish_order) == 6
    for name in engine.finish_order:
        assert engine.tokens[name] == engine.expected(name)
    prompts = [engine.last[name].usage.prompt_tokens for name in ("a", "a#2", "a#4")]
    assert prompts == [2, 3, 9]


def test_choices_on_a_pool_that_holds_only_one_of_them_still_end(make_engine: Make) -> None:
    engine = make_engine(num_blocks=6, max_model_len=24, sequences_max=4)
    sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=14)
    engine.submit("a", 9, sampling=sampling, choice_count=5)
    engine.run()
    assert len(engine.finish_order) == 5
    for name in engine.finish_order:
        assert engine.tokens[name] == engine.expected(name)
    assert engine.core.stats().preemptions_total > 0


def test_all_choices_are_queued_or_none(make_engine: Make) -> None:
    engine = make_engine(waiting_max=4)
    engine.submit("a", 5)
    with pytest.raises(RateLimited):
        engine.submit("b", 5, choice_count=4)
    with pytest.raises(InvalidRequest) as caught:
        engine.submit("c", 5, choice_count=5)
    assert caught.value.param == "n"
    engine.run()
    assert engine.finish_order == ["a"]


def test_a_request_past_its_deadline_ends_wherever_it_is(make_engine: Make) -> None:
    engine = make_engine(sequences_max=2)
    for name in ("decodes", "stays"):
        engine.submit(name, 5, max_tokens=50, deadline_s=10.0 if name == "decodes" else 500.0)
    engine.submit("waits", 5, max_tokens=50, deadline_s=10.0)
    engine.step(4)
    engine.clock.advance(10.0)
    engine.step()
    assert engine.reason("decodes") is engine.reason("waits") is FinishReason.TIMEOUT
    assert "deadline" in (engine.last["waits"].error or "")
    assert engine.last["decodes"].usage.completion_tokens == len(engine.tokens["decodes"]) == 4
    assert engine.last["waits"].usage == RequestUsage(0, 0, 0)
    engine.run()
    assert engine.reason("stays") is FinishReason.LENGTH


def test_an_id_used_again_is_not_ended_by_the_old_deadline(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 5, max_tokens=1, deadline_s=10.0)
    engine.run()
    engine.submit("a", 5, max_tokens=3)
    engine.clock.advance(10.0)
    engine.run()
    assert engine.reason("a") is FinishReason.LENGTH
