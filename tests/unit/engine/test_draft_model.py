"""A draft model's guesses: the same tokens whatever it says, fewer steps where it agrees."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.draft_model import DraftModel
from headrace.engine.request import EngineRequest, FinishReason, SamplingParams
from headrace.engine.sequence import Sequence
from headrace.sim.clock import ManualClock, SteppingClock
from headrace.sim.runner import FakeModel, FakeRunner

Make = Callable[..., Any]
vocab_size = 10_000
sampled = SamplingParams(temperature=0.9, top_k=7, top_p=0.9, min_p=0.1, seed=5, max_tokens=20)


def draft_model(model: FakeModel, **changes: Any) -> DraftModel:
    sizes = {"num_blocks": 64, "block_size_tokens": 4, "rows_max": 16, "sequences_max": 8}
    runner = FakeRunner(model, **{**sizes, **changes})
    return DraftModel(runner, SteppingClock(), vocab_size)


@pytest.fixture
def make_drafting(make_engine: Make) -> Make:
    def make(draft: DraftModel, **fields: Any) -> Any:
        return make_engine(proposer=draft, draft_tokens_max=4, running_max=4, **fields)

    return make


def test_a_model_that_agrees_saves_steps(make_drafting: Make) -> None:
    engine = make_drafting(draft_model(FakeModel(vocab_size)))
    engine.submit("greedy", 5, max_tokens=21)
    engine.submit("sampled", 9, sampling=sampled)
    engine.run()
    for name in ("greedy", "sampled"):
        assert engine.tokens[name] == engine.expected(name)
    stats = engine.core.stats()
    assert stats.accepted_by_position == stats.drafted_by_position
    assert sum(stats.accepted_by_position) >= 16
    assert engine.runner.steps < 20


def test_a_model_that_never_agrees_changes_nothing(make_drafting: Make) -> None:
    other = draft_model(FakeModel(vocab_size - 1))
    engine = make_drafting(other)
    for index in range(6):
        engine.submit(f"r{index}", 3 + index, sampling=sampled)
    engine.run()
    for name in engine.finish_order:
        assert engine.tokens[name] == engine.expected(name)
        assert engine.reason(name) is FinishReason.LENGTH
    stats = engine.core.stats()
    assert sum(stats.drafted_by_position) > sum(stats.accepted_by_position)
    other.check_invariants()


def test_choices_and_preempted_requests_keep_their_tokens(make_drafting: Make) -> None:
    draft = draft_model(FakeModel(vocab_size), num_blocks=12)
    engine = make_drafting(draft, num_blocks=10, max_model_len=40)
    engine.submit("choices", 6, sampling=sampled, choice_count=3)
    for index in range(3):
        engine.submit(f"r{index}", 8, max_tokens=20, priority=index % 2)
    engine.run()
    for name in ("choices", "r0", "r1", "r2"):
        assert engine.tokens[name] == engine.expected(name)
    draft.check_invariants()


def test_what_ended_leaves_nothing_behind(make_drafting: Make) -> None:
    draft = draft_model(FakeModel(vocab_size))
    engine = make_drafting(draft)
    engine.submit("kept", 5, max_tokens=30)
    engine.submit("left", 5, max_tokens=30)
    for _ in range(3):
        engine.step()
    engine.core.abort("left")
    engine.run()
    draft.check_invariants()
    assert draft.is_idle


def followed(prompt_count: int, **sampling: Any) -> Sequence:
    prompt = tuple(range(10, 10 + prompt_count))
    params = SamplingParams(temperature=0, max_tokens=50, **sampling)
    return Sequence(EngineRequest("r", prompt, params), 1, 0.0, 50)


def test_a_long_prompt_is_read_in_chunks_before_there_are_guesses() -> None:
    draft = draft_model(FakeModel(vocab_size), rows_max=8)
    sequence = followed(20)
    counts = []
    for _ in range(4):
        draft.prepare([(sequence, 3)])
        counts.append(len(draft.propose(sequence, 3)))
    assert counts == [0, 0, 3, 3]
    expected = FakeModel(vocab_size).generate(
        tuple(sequence.tokens), SamplingParams(temperature=0, max_tokens=3), 100
    )[0]
    assert draft.propose(sequence, 3) == expected


def test_a_word_that_the_large_model_lacks_ends_the_guesses() -> None:
    greedy = SamplingParams(temperature=0, max_tokens=3)
    sequences = [followed(count) for count in range(5, 30)]
    said = [FakeModel(vocab_size).generate(tuple(s.tokens), greedy, 100)[0] for s in sequences]
    sequence, guesses = next(
        both for both in zip(sequences, said, strict=True) if both[1][0] < both[1][1]
    )
    runner = FakeRunner(FakeModel(vocab_size), num_blocks=9, block_size_tokens=4, rows_max=64)
    draft = DraftModel(runner, SteppingClock(), vocab_size=guesses[1])
    draft.prepare([(sequence, 4)])
    assert draft.propose(sequence, 4) == guesses[:1]
    draft.check_invariants()


def test_the_longest_unasked_gives_way_where_blocks_run_out() -> None:
    draft = draft_model(FakeModel(vocab_size), num_blocks=6)
    first, second = followed(8), followed(8)
    draft.prepare([(first, 4)])
    draft.prepare([(second, 4)])
    assert len(draft.propose(second, 4)) == 4
    draft.check_invariants()
    draft.prepare([(first, 4), (second, 4)])  # there is room for both
    assert draft.propose(first, 4)
    third = followed(16)
    draft.prepare([(third, 4)])
    assert draft.propose(third, 4)
    assert not draft.propose(first, 4)
    draft.check_invariants()


@pytest.mark.parametrize(
    ("prompt_count", "changes"),
    [(30, {"max_model_len": 32}), (30, {"num_blocks": 4}), (8, {"vocab": 12})],
)
def test_what_it_cannot_hold_gets_no_guesses(prompt_count: int, changes: dict[str, Any]) -> None:
    model = FakeModel(changes.pop("vocab", vocab_size))
    draft = draft_model(model, **changes)
    sequence = followed(prompt_count)
    for _ in range(4):
        draft.prepare([(sequence, 4)])
        assert draft.propose(sequence, 4) == []
    draft.check_invariants()


def test_guesses_the_model_does_not_have_are_none() -> None:
    runner = FakeRunner(FakeModel(vocab_size), num_blocks=8)
    draft = DraftModel(runner, ManualClock(), vocab_size=25)
    sequence = followed(8)
    for _ in range(5):
        sequence.tokens.append(len(sequence.tokens))
        draft.prepare([(sequence, 4)])
        assert all(token_id < 25 for token_id in draft.propose(sequence, 4))
