"""Who gets rows, who waits, who gives way."""

from collections.abc import Callable
from typing import Any

from headrace.engine.request import FinishReason, SamplingParams

Make = Callable[..., Any]


def test_decodes_come_first_and_chunks_take_what_is_left(make_engine: Make) -> None:
    engine = make_engine(rows_max=8, sequences_max=4)
    engine.submit("short", 3, max_tokens=20)
    engine.submit("long", 20, max_tokens=20)
    engine.step(4)
    # short whole and long's first chunk; then short decodes beside chunks of 7; then both decode.
    assert engine.row_counts == [[3, 5], [1, 7], [1, 7], [1, 1]]


def test_chunks_of_several_prompts_share_a_step(make_engine: Make) -> None:
    engine = make_engine(rows_max=10)
    engine.submit("a", 6)
    engine.submit("b", 6)
    engine.submit("c", 6)
    engine.step(2)
    assert engine.row_counts == [[6, 4], [1, 2, 6]]


def test_a_prompt_is_admitted_only_if_all_of_it_fits(make_engine: Make) -> None:
    engine = make_engine(num_blocks=10, rows_max=8)
    engine.submit("running", 16, max_tokens=8)
    engine.submit("too_long_for_now", 28, max_tokens=4)
    engine.step(8)
    assert engine.core.stats().running_requests == 1
    assert all(len(counts) == 1 for counts in engine.row_counts)
    engine.run()
    assert engine.tokens["too_long_for_now"] == engine.expected("too_long_for_now")
    assert engine.core.stats().preemptions_total == 0


def test_the_youngest_of_the_class_gives_way(make_engine: Make) -> None:
    engine = make_engine(num_blocks=8, caching=False)
    engine.submit("old", 12, max_tokens=16)
    engine.submit("young", 8, max_tokens=8)
    engine.run()
    assert engine.core.stats().preemptions_total > 0
    assert engine.finish_order == ["old", "young"]  # though young has half as much to do
    assert engine.tokens["old"] == engine.expected("old")
    assert engine.tokens["young"] == engine.expected("young")


def test_a_lower_class_gives_way_before_a_younger_one_of_the_class(make_engine: Make) -> None:
    engine = make_engine(num_blocks=12, caching=False)
    engine.submit("low", 8, priority=5, max_tokens=16)
    engine.step()
    engine.submit("high_old", 12, max_tokens=16)
    engine.submit("high_young", 8, max_tokens=8)
    engine.run()
    assert engine.core.stats().preemptions_total > 0
    assert engine.finish_order == ["high_young", "high_old", "low"]
    for request_id in engine.tokens:
        assert engine.tokens[request_id] == engine.expected(request_id)


def test_a_higher_class_takes_a_slot_from_a_lower_one(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("low", 4, priority=1, max_tokens=30)
    engine.step(3)
    engine.submit("high", 4, priority=0, max_tokens=2)
    engine.step(2)
    assert engine.reason("high") is FinishReason.LENGTH
    engine.run()
    assert engine.tokens["low"] == engine.expected("low")


def test_an_equal_class_does_not_take_a_slot(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("first", 4, max_tokens=10)
    engine.submit("second", 4, max_tokens=10)
    engine.run()
    assert engine.core.stats().preemptions_total == 0


def test_lower_classes_are_not_preempted_when_that_is_not_enough(make_engine: Make) -> None:
    engine = make_engine(num_blocks=10, caching=False)
    engine.submit("top", 20, priority=0, max_tokens=8)
    engine.submit("low", 8, priority=2, max_tokens=4)
    engine.step()
    assert engine.core.stats().running_requests == 2
    engine.submit("middle", 24, priority=1, max_tokens=2)
    engine.step()
    assert engine.core.stats().preemptions_total == 0
    assert engine.core.stats().running_requests == 2


def test_a_preempted_request_keeps_its_tokens_and_its_place(make_engine: Make) -> None:
    engine = make_engine(num_blocks=8, caching=False, sequences_max=2)
    engine.submit("a", 12, max_tokens=16)
    engine.submit("b", 8, max_tokens=8)
    engine.step_until(lambda: engine.core.stats().preemptions_total > 0)
    kept = list(engine.tokens["b"])
    assert kept
    engine.submit("c", 8, max_tokens=8)
    engine.run()
    assert engine.tokens["b"][: len(kept)] == kept
    assert engine.tokens["b"] == engine.expected("b")
    assert engine.finish_order == ["a", "b", "c"]


def test_requests_with_a_prefix_in_progress_wait_for_it_and_share_it(make_engine: Make) -> None:
    engine = make_engine(rows_max=16)
    prefix = tuple(range(32))
    for index in range(6):
        engine.submit(f"r{index}", (*prefix, 50 + index), max_tokens=3)
    engine.run()
    prompt_rows = sum(sum(counts) for counts in engine.row_counts) - 6 * 2
    assert prompt_rows == 33 + 5  # the prefix once, then one row each
    assert [engine.last[f"r{i}"].usage.cached_tokens for i in range(6)] == [0, 32, 32, 32, 32, 32]


def test_a_request_behind_waiting_ones_for_a_prefix_is_not_held_up(make_engine: Make) -> None:
    engine = make_engine(rows_max=40)
    prefix = tuple(range(32))
    engine.submit("first", (*prefix, 50))
    engine.submit("shares", (*prefix, 51))
    engine.submit("other", 4)
    engine.step()
    assert engine.tokens["other"], "held up"
    assert not engine.tokens["shares"]


def test_a_higher_class_does_not_wait_for_a_lower_ones_prefix(make_engine: Make) -> None:
    engine = make_engine(rows_max=16)
    prefix = tuple(range(100, 164))
    engine.submit("low", (*prefix, 50), priority=1)
    engine.step()
    engine.submit("high", (*prefix, 51), priority=0)
    engine.step()
    assert engine.core.stats().running_requests == 2


def test_a_request_rises_a_class_with_time_and_is_not_starved(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("low", 4, priority=2, max_tokens=4)
    for index in range(12):  # always a younger one of class 1 in the queue
        engine.submit(f"r{index}", 4, priority=1, max_tokens=4)
    for index in range(12, 24):
        engine.step(4)
        engine.clock.advance(10.0)
        engine.submit(f"r{index}", 4, priority=1, max_tokens=4)
        if "low" in engine.finish_order:
            break
    assert engine.finish_order.index("low") == 6  # after 60 s it is the oldest of class 0


def test_a_running_request_is_not_evicted_by_a_younger_one_that_rose(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("old", 4, priority=1, max_tokens=20)
    engine.step()
    engine.submit("young", 4, priority=1, max_tokens=2)
    engine.clock.advance(31.0)
    engine.run()
    assert engine.core.stats().preemptions_total == 0
    assert engine.finish_order == ["old", "young"]


def test_a_request_keeps_the_class_it_has_risen_to(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("first", 4, max_tokens=2)
    engine.submit("aged", 4, priority=1, max_tokens=20)
    engine.step()
    engine.clock.advance(31.0)
    engine.step(3)
    assert engine.tokens["aged"]
    engine.submit("young", 4, priority=0, max_tokens=2)
    engine.run()
    assert engine.core.stats().preemptions_total == 0
    assert engine.finish_order == ["first", "aged", "young"]


def test_nothing_rises_above_class_0(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("urgent", 4, priority=-1, max_tokens=2)
    engine.submit("default", 4, priority=0, max_tokens=2)
    engine.step()
    engine.clock.advance(1000.0)
    engine.submit("urgent_too", 4, priority=-1, max_tokens=2)
    engine.run()
    assert engine.finish_order == ["urgent", "urgent_too", "default"]


def test_room_is_left_for_what_runs_to_grow(make_engine: Make) -> None:
    """Filling the pool with prompts alone would preempt nearly every request."""
    engine = make_engine(num_blocks=64, caching=False, rows_max=64)
    for index in range(16):
        engine.submit(f"r{index}", 16, max_tokens=16)
    engine.run()
    stats = engine.core.stats()
    assert stats.preemptions_total <= 4
    assert stats.steps_total < 16 * 16 / 4, "too few ran at once"


def test_more_sequences_than_rows_are_never_running(make_engine: Make) -> None:
    engine = make_engine(rows_max=3, sequences_max=16)
    for index in range(8):
        engine.submit(f"r{index}", 2, sampling=SamplingParams(temperature=0, max_tokens=5))
    engine.run()
    assert max(len(counts) for counts in engine.row_counts) == 3
    for request_id in engine.tokens:
        assert engine.tokens[request_id] == engine.expected(request_id)
