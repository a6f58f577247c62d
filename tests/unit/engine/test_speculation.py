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


def sequences(count: int, acceptance: float = 0.9) -> list[Sequence]:
    made = []
    for index in range(count):
        request = EngineRequest(f"r{index}", (1, 2, 3), SamplingParams())
        made.append(Sequence(request, index, 0.0, 100))
        made[-1].draft_acceptance = acceptance
    return made


class Anything:
    def propose(self, sequence: Sequence, count: int) -> list[int]:
        return [0] * count


def drafted(speculator: Speculator, decodes: list[Sequence]) -> list[int]:
    speculator.draft(decodes, 1000, lambda _, count: count)
    return [len(sequence.drafts) for sequence in decodes]


def measured(base_s: float, row_s: float) -> Speculator:
    speculator = Speculator(Anything(), 8, ManualClock())
    for rows in [1, 4, 8, 16, 32] * 20:
        speculator.record_step(rows, base_s + rows * row_s)
    return speculator


def test_drafts_are_many_where_a_step_costs_much_and_a_row_little() -> None:
    assert drafted(measured(base_s=0.1, row_s=0.001), sequences(1)) == [8]


def test_nothing_is_drafted_where_rows_bound_the_step() -> None:
    assert drafted(measured(base_s=0.001, row_s=0.010), sequences(2)) == [0, 0]


def test_a_large_batch_drafts_less_a_sequence_than_a_small_one() -> None:
    speculator = measured(base_s=0.016, row_s=0.001)
    alone, many = drafted(speculator, sequences(1)), drafted(speculator, sequences(64))
    assert alone[0] > max(many) == 0 or sum(many) / 64 < alone[0]
    assert alone[0] >= 4


def test_wrong_drafts_make_fewer_and_a_pause_makes_them_be_tried_again() -> None:
    speculator = measured(base_s=0.016, row_s=0.002)
    (sequence,) = sequences(1, acceptance=0.6)
    counts = []
    for _ in range(20):
        (count,) = drafted(speculator, [sequence])
        counts.append(count)
        if count:
            speculator.record_drafts(sequence, accepted=0)
    assert counts[0] >= 2
    assert 0 in counts[1:]
    later = [drafted(speculator, [sequence])[0] for _ in range(100) if not sequence.drafts]
    assert any(later)
