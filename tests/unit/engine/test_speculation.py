"""Drafts: the same tokens in fewer steps, and none where they cost more than they bring."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.request import EngineRequest, FinishReason, RequestUsage, SamplingParams
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Speculator
from headrace.sim.clock import ManualClock

Make = Callable[..., Any]


class Oracle:
    """Proposes the model's own continuation, with every n-th token wrong."""

    def __init__(self, wrong_every: int = 0) -> None:
        self.wrong_every = wrong_every
        self.engine: Any = None

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        first = sequence.completion_count
        right = self.engine.expected(sequence.request_id)[first : first + count]
        wrong = self.wrong_every
        return [
            token + 1 if wrong and (first + place) % wrong == 0 else token
            for place, token in enumerate(right)
        ]


@pytest.fixture
def make_drafting(make_engine: Make) -> Make:
    def make(proposer: Oracle, **fields: Any) -> Any:
        engine = make_engine(proposer=proposer, draft_tokens_max=4, running_max=4, **fields)
        proposer.engine = engine
        return engine

    return make


def test_right_drafts_give_the_same_tokens_in_fewer_steps(make_drafting: Make) -> None:
    engine = make_drafting(Oracle())
    engine.submit("a", 5, max_tokens=21)
    engine.run()
    assert engine.tokens["a"] == engine.expected("a")
    assert engine.runner.steps == 1 + 20 // 5
    stats = engine.core.stats()
    assert stats.accepted_by_position == stats.drafted_by_position == (4, 4, 4, 4)
    assert engine.last["a"].usage == RequestUsage(5, 0, 21, accepted_drafts=16)


def test_drafts_have_the_places_of_sequences_that_are_not_there(make_engine: Make) -> None:
    """As many sequences as rows may run at once; one does, and then as many as there may be."""
    oracle = Oracle()
    engine = make_engine(
        proposer=oracle, draft_tokens_max=4, rows_max=8, sequences_max=8, running_max=8
    )
    oracle.engine = engine
    engine.submit("a", 5, max_tokens=21)
    engine.run()
    assert engine.runner.steps == 1 + 20 // 5
    for index in range(10):
        engine.submit(f"r{index}", 2, max_tokens=4 + index)
    engine.run()
    assert all(tokens == engine.expected(name) for name, tokens in engine.tokens.items())


@pytest.mark.parametrize("wrong_every", [1, 2, 3])
def test_wrong_drafts_change_no_token(make_drafting: Make, wrong_every: int) -> None:
    engine = make_drafting(Oracle(wrong_every))
    for index in range(5):
        sampling = SamplingParams(temperature=0.8 * (index % 2), seed=index, max_tokens=20)
        engine.submit(f"r{index}", 4 + index, sampling=sampling)
    engine.run()
    for name in engine.finish_order:
        assert engine.tokens[name] == engine.expected(name)
        assert engine.reason(name) is FinishReason.LENGTH
    stats = engine.core.stats()
    assert sum(stats.accepted_by_position) < sum(stats.drafted_by_position)
    usages = [engine.last[name].usage for name in engine.finish_order]
    accepted = sum(usage.accepted_drafts for usage in usages)
    assert accepted == sum(stats.accepted_by_position)
    assert accepted + sum(usage.refused_drafts for usage in usages) == sum(
        stats.drafted_by_position
    )


def test_nothing_after_a_stop_token_in_a_draft_is_delivered(make_drafting: Make) -> None:
    engine = make_drafting(Oracle())
    greedy = SamplingParams(temperature=0, max_tokens=20)
    stop = engine.model.generate((1, 2, 3), greedy, 100)[0][7]
    sampling = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=frozenset({stop}))
    engine.submit("a", (1, 2, 3), sampling=sampling)
    engine.run()
    assert engine.reason("a") is FinishReason.STOP
    assert engine.tokens["a"] == engine.expected("a")
    assert engine.last["a"].usage.completion_tokens == 7


def test_tokens_that_were_drafted_are_in_the_prefix_cache_and_wrong_ones_are_not(
    make_drafting: Make,
) -> None:
    engine = make_drafting(Oracle(wrong_every=3))
    engine.submit("a", 5, max_tokens=20)
    engine.run()
    history = (*engine.requests["a"].prompt_token_ids, *engine.tokens["a"])
    engine.submit("b", history, max_tokens=4)
    engine.run()
    assert engine.tokens["b"] == engine.expected("b")
    assert engine.last["b"].usage.cached_tokens >= 16


def test_drafts_take_no_block_that_a_running_request_needs(make_drafting: Make) -> None:
    engine = make_drafting(Oracle(), num_blocks=8, max_model_len=32)
    for index in range(4):
        engine.submit(f"r{index}", 7, max_tokens=20)
    engine.run()
    for name in engine.finish_order:
        assert engine.tokens[name] == engine.expected(name)


class Anything:
    def __init__(self) -> None:
        self.asked = 0

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        self.asked += 1
        return [7] * count


def sequences(count: int) -> list[Sequence]:
    requests = [EngineRequest(f"r{index}", (1, 2, 3), SamplingParams()) for index in range(count)]
    return [Sequence(request, 0, 0.0, 1000) for request in requests]


def drafted(speculator: Speculator, decodes: list[Sequence]) -> list[int]:
    speculator.draft(decodes, 1000, lambda _, count: count)
    return [len(sequence.drafts) for sequence in decodes]


def measured(step_s: Callable[[int], float], sizes: tuple[int, ...] = (1, 8, 32)) -> Speculator:
    """One that saw steps of a prompt, and of so many answers."""
    speculator = Speculator(Anything(), 8, ManualClock())
    speculator.record_step(128, step_s(128), only_decodes=False)
    for rows in sizes * 20:
        speculator.record_step(rows, step_s(rows))
    return speculator


def bound_by_arithmetic(rows: int) -> float:
    return 0.002 * rows


def bound_by_memory(rows: int) -> float:
    return max(0.100, 0.001 * rows)


def come_true(speculator: Speculator, decodes: list[Sequence], *, is_right: bool) -> None:
    """The next token of each of them, as guessed or not."""
    for sequence in decodes:
        accepted = len(sequence.drafts) if is_right else 0
        sequence.tokens.extend([7] * accepted + [7 if is_right else 8])
        if sequence.drafts:
            speculator.record_drafts(sequence, accepted)


def test_drafts_are_many_where_a_row_more_costs_nothing() -> None:
    speculator, decodes = measured(bound_by_memory), sequences(1)
    for _ in range(4):
        assert drafted(speculator, decodes)[0] >= 4
        come_true(speculator, decodes, is_right=True)


@pytest.mark.parametrize("count", [1, 3, 8, 32])
def test_nothing_is_drafted_where_rows_bound_the_step(count: int) -> None:
    """However many come true, from the first step on."""
    speculator = measured(bound_by_arithmetic, sizes=(count,))
    decodes = sequences(count)
    for _ in range(30):
        assert drafted(speculator, decodes) == [0] * count
        come_true(speculator, decodes, is_right=True)


def test_prompts_tell_what_a_row_costs_beside_answers_of_one_number() -> None:
    speculator = measured(bound_by_arithmetic, sizes=(8,))
    assert drafted(speculator, sequences(8)) == [0] * 8


def test_rows_are_drafted_as_far_as_memory_bounds_the_step() -> None:
    def step_s(rows: int) -> float:
        return max(0.032, 0.002 * rows)

    speculator = measured(step_s, sizes=(1, 4, 16, 32))
    assert 4 <= sum(drafted(speculator, sequences(4))) <= 12
    assert sum(drafted(speculator, sequences(32))) == 0


def test_a_guess_that_is_not_worth_its_row_is_held_against_what_comes() -> None:
    def step_s(rows: int) -> float:
        return 0.003 + 0.001 * rows

    speculator = measured(step_s, sizes=(8, 16))
    decodes = sequences(8)
    counts = []
    for _ in range(20):
        counts.append(sum(drafted(speculator, decodes)))
        come_true(speculator, decodes, is_right=True)
    assert counts[0] == 0
    assert counts[-1] > 0


def test_what_came_true_for_others_counts_for_a_new_request() -> None:
    speculator = measured(lambda rows: 0.016 + 0.002 * rows)
    before, first = sum(drafted(speculator, sequences(1))), sequences(1)
    for _ in range(30):
        drafted(speculator, first)
        come_true(speculator, first, is_right=False)
    assert sum(drafted(speculator, sequences(1))) == 0 < before


def test_wrong_drafts_make_fewer_and_right_ones_make_more_again() -> None:
    def step_s(rows: int) -> float:
        return 0.016 + 0.004 * rows

    speculator, (sequence,) = measured(step_s, sizes=(1, 4)), sequences(1)
    counts = []
    for step in range(60):
        counts.append(drafted(speculator, [sequence])[0])
        come_true(speculator, [sequence], is_right=step > 20)
    assert counts[0] > 0 == counts[20]
    assert counts[-1] > counts[0]


def test_guesses_cost_no_look_where_no_token_may_follow() -> None:
    speculator = measured(bound_by_memory)
    (sequence,) = sequences(1)
    sequence.max_tokens = 1
    assert drafted(speculator, [sequence]) == [0]
