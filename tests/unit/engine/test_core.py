"""What a caller of the engine sees: tokens, endings, usage, errors."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Conflict, ContextLengthExceeded, InvalidRequest, RateLimited
from headrace.engine.request import EngineRequest, FinishReason, RequestUsage, SamplingParams
from headrace.sim.runner import FakeModel

Make = Callable[..., Any]


def test_tokens_are_those_of_the_request_alone_whoever_else_runs(make_engine: Make) -> None:
    engine = make_engine(num_blocks=20, rows_max=7, sequences_max=5)
    for index in range(12):
        sampling = SamplingParams(temperature=index % 3 / 2, seed=index, max_tokens=14 + index)
        engine.submit(f"r{index}", 3 + index, sampling=sampling, priority=index % 2)
    engine.run()
    for request_id, tokens in engine.tokens.items():
        assert tokens == engine.expected(request_id)
    assert engine.core.stats().preemptions_total > 0


def test_length_ends_a_request_after_max_tokens(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 5, max_tokens=3)
    engine.run()
    assert engine.reason("a") is FinishReason.LENGTH
    assert engine.last["a"].usage == RequestUsage(5, 0, 3)
    assert len(engine.tokens["a"]) == 3


def test_max_tokens_is_cut_to_what_the_context_leaves(make_engine: Make) -> None:
    engine = make_engine(max_model_len=16)
    engine.submit("a", 10, max_tokens=1000)
    engine.run()
    assert engine.reason("a") is FinishReason.LENGTH
    assert len(engine.tokens["a"]) == 6


def test_a_pool_smaller_than_the_context_is_the_limit(make_engine: Make) -> None:
    engine = make_engine(num_blocks=3, max_model_len=100)
    engine.submit("a", 10, max_tokens=1000)
    engine.run()
    assert len(engine.tokens["a"]) == 2
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.submit("b", 12, max_tokens=7)
    assert caught.value.fields == {"prompt_tokens": 12, "max_model_len": 12, "max_tokens": 7}
    assert caught.value.http_status == 400


def stop_at(model: FakeModel, prompt: tuple[int, ...], position: int) -> int:
    greedy = SamplingParams(temperature=0, max_tokens=position + 1)
    return model.generate(prompt, greedy, 100)[0][position]


def test_a_stop_token_ends_the_request_and_is_not_delivered_or_counted(make_engine: Make) -> None:
    engine, prompt = make_engine(), (1, 2, 3)
    stop = stop_at(engine.model, prompt, 4)
    sampling = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=frozenset({stop}))
    engine.submit("a", prompt, sampling=sampling)
    engine.run()
    assert engine.reason("a") is FinishReason.STOP
    assert len(engine.tokens["a"]) == 4
    assert stop not in engine.tokens["a"]
    assert engine.last["a"].usage.completion_tokens == 4


@pytest.mark.parametrize("overrides", [{"min_tokens": 5}, {"ignore_eos": True}])
def test_min_tokens_and_ignore_eos_go_past_a_stop_token(
    make_engine: Make, overrides: dict[str, Any]
) -> None:
    engine, prompt = make_engine(), (1, 2, 3)
    stop = frozenset({stop_at(engine.model, prompt, 4)})
    sampling = SamplingParams(temperature=0, max_tokens=9, stop_token_ids=stop, **overrides)
    engine.submit("a", prompt, sampling=sampling)
    engine.run()
    assert engine.reason("a") is FinishReason.LENGTH
    assert len(engine.tokens["a"]) == 9


def test_a_row_that_is_not_finite_fails_its_request_only(make_engine: Make) -> None:
    engine = make_engine(model=FakeModel(10_000, poison_token_id=666))
    engine.submit("bad", (1, 2, 666))
    engine.submit("good", (1, 2, 3))
    engine.run()
    assert engine.reason("bad") is FinishReason.ERROR
    assert "not finite" in engine.last["bad"].error
    assert engine.tokens["bad"] == []
    assert engine.reason("good") is FinishReason.LENGTH
    assert engine.tokens["good"] == engine.expected("good")
    assert engine.core.stats().finished_total == {"error": 1, "length": 1}


def test_nothing_of_a_request_that_was_not_finite_is_shared(make_engine: Make) -> None:
    engine = make_engine(model=FakeModel(10_000, poison_token_id=666), rows_max=4)
    prompt = (1, 2, 3, 4, 5, 6, 7, 8, 666)  # its first two blocks are committed chunk by chunk
    engine.submit("bad", prompt)
    engine.run()
    engine.submit("again", prompt)
    engine.run()
    assert engine.last["again"].usage.cached_tokens == 0


def test_an_abort_frees_everything_within_one_step_in_every_state(make_engine: Make) -> None:
    engine = make_engine(num_blocks=16, rows_max=8, sequences_max=2)
    engine.submit("decoding", 4, max_tokens=20)
    engine.submit("prefilling", 28)
    engine.submit("waiting", 8)
    engine.step(2)
    for request_id in ("decoding", "prefilling", "waiting"):
        engine.core.abort(request_id)
    rows = engine.runner.rows
    engine.step()
    assert engine.runner.rows == rows, "an aborted request was computed"
    assert not engine.core.has_work()
    assert engine.core.stats().kv_blocks_used == 0
    for request_id in ("decoding", "prefilling", "waiting"):
        assert engine.reason(request_id) is FinishReason.ABORT
    assert engine.last["decoding"].usage == RequestUsage(4, 0, 2)


def test_a_request_that_was_aborted_while_it_waited_used_nothing(make_engine: Make) -> None:
    engine = make_engine(sequences_max=1)
    engine.submit("running", 4, max_tokens=8)
    engine.submit("waiting", 5, max_tokens=8)
    engine.clock.advance(1.5)
    engine.step()
    engine.core.abort("waiting")
    engine.step()
    assert engine.last["waiting"].usage == RequestUsage(0, 0, 0)
    assert engine.last["waiting"].queue_s is None
    assert engine.last["running"].queue_s == 1.5
    assert engine.core.stats().prompt_tokens_total == 4


def test_an_abort_while_the_runner_works_takes_effect_in_that_step(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 6, max_tokens=20)
    engine.submit("b", 6, max_tokens=20)
    engine.step()
    engine.during_step = lambda: engine.core.abort("a")
    engine.step()
    assert engine.reason("a") is FinishReason.ABORT
    assert engine.last["a"].usage.completion_tokens == len(engine.tokens["a"]) == 1
    assert len(engine.tokens["b"]) == 2


def test_a_request_that_arrives_and_leaves_while_the_runner_works_never_runs(
    make_engine: Make,
) -> None:
    engine = make_engine()
    engine.submit("a", 6, max_tokens=4)

    def come_and_go() -> None:
        engine.during_step = None
        engine.submit("b", 6)
        engine.core.abort("b")

    engine.during_step = come_and_go
    engine.run()
    assert engine.reason("b") is FinishReason.ABORT
    assert [len(counts) for counts in engine.row_counts] == [1, 1, 1, 1]


def test_a_step_that_the_runner_could_not_finish_is_repeated_by_the_next(
    make_engine: Make,
) -> None:
    engine = make_engine(rows_max=4)
    engine.submit("a", 10, max_tokens=6)
    engine.step()

    def fail_once() -> None:
        engine.during_step = None
        raise MemoryError

    engine.during_step = fail_once
    with pytest.raises(MemoryError):
        engine.step()
    engine.core.check_invariants()
    engine.run()
    assert engine.tokens["a"] == engine.expected("a")


def test_an_unknown_or_finished_id_may_be_aborted(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 6, max_tokens=1)
    engine.run()
    engine.core.abort("a")
    engine.core.abort("never")
    assert engine.core.has_work()
    engine.step()
    assert engine.reason("a") is FinishReason.LENGTH
    assert not engine.core.has_work()


def test_an_id_in_use_is_refused_and_free_again_after_its_end(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 6)
    with pytest.raises(Conflict):
        engine.submit("a", 6)
    engine.run()
    engine.submit("a", 6)


def test_a_full_queue_refuses_and_says_when_to_come_back(make_engine: Make) -> None:
    engine = make_engine(waiting_max=2, sequences_max=1)
    engine.submit("a", 6, max_tokens=4)
    engine.submit("b", 6, max_tokens=4)
    with pytest.raises(RateLimited) as caught:
        engine.submit("c", 6)
    assert caught.value.retry_after_s == 1.0  # nothing measured yet
    for _ in range(8):  # one request every 4 steps of 0.5 s
        engine.step()
        engine.clock.advance(0.5)
    engine.submit("d", 6, max_tokens=4)
    engine.submit("e", 6, max_tokens=4)
    engine.clock.advance(1.0)
    with pytest.raises(RateLimited) as caught:
        engine.submit("f", 6)
    assert caught.value.retry_after_s == pytest.approx(5.0)
    assert caught.value.fields == {"waiting_requests": 2}


def test_counters_tell_prompt_cached_and_completion_tokens(make_engine: Make) -> None:
    engine = make_engine()
    for index in range(3):
        engine.submit(f"r{index}", (7,) * 11, max_tokens=5)
        engine.run()
    stats = engine.core.stats()
    assert stats.prompt_tokens_total == 33
    assert stats.cached_tokens_total == 16
    assert stats.completion_tokens_total == 15
    assert stats.steps_total == engine.runner.steps
    assert stats.finished_total == {"length": 3}


def test_seconds_of_the_runner_and_of_the_rest_are_told_apart(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit("a", 6, max_tokens=3)
    engine.during_step = lambda: engine.clock.advance(0.25)
    engine.run()
    assert engine.core.stats().step_seconds_total == 0.75
    assert engine.core.stats().scheduler_seconds_total == 0


def test_recomputed_tokens_are_counted_once_for_each_time(make_engine: Make) -> None:
    engine = make_engine(num_blocks=6, caching=False)
    engine.submit("a", 8, max_tokens=8)
    engine.submit("b", 8, max_tokens=8)
    engine.run()
    stats = engine.core.stats()
    assert stats.preemptions_total > 0
    computed = sum(sum(counts) for counts in engine.row_counts)
    assert stats.recomputed_tokens_total == computed - 2 * 15  # the last token needs no KV


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 1.0),
        ("max_tokens", 0),
        ("min_tokens", -1),
    ],
)
def test_a_sampling_parameter_out_of_range_is_named(
    make_engine: Make, name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_engine().submit("a", 3, sampling=SamplingParams(**{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize("prompt", [(), (1, -1), (1, 10_000), (1, 2**40)])
def test_a_prompt_without_tokens_or_with_unknown_ones_is_refused(
    make_engine: Make, prompt: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_engine().submit("a", prompt)
    assert caught.value.param == "prompt"


def test_a_seed_outside_64_bits_is_wrapped(make_engine: Make) -> None:
    engine = make_engine()
    for request_id, seed in (("a", -1), ("b", 2**64 - 1)):
        engine.submit(request_id, (1, 2), sampling=SamplingParams(seed=seed, max_tokens=4))
    engine.run()
    assert engine.tokens["a"] == engine.tokens["b"]


def test_blocks_that_nobody_holds_any_more_are_taken_back_when_idle(make_engine: Make) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32)
    pool = engine.core._scheduler.kv.pool  # a fault that no call from outside can cause
    pool.allocate(5)
    engine.core.submit(EngineRequest("a", (1, 2, 3), SamplingParams(temperature=0, max_tokens=4)))
    while engine.core.has_work():
        engine.core.step()
    stats = engine.core.stats()
    assert (stats.leaked_blocks_total, stats.kv_blocks_used) == (5, 0)
    pool.check_invariants([])
