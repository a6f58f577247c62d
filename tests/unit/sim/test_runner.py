"""The fake runner gives itself away when an engine makes a mistake."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.engine.request import FinishReason, SamplingParams
from headrace.engine.runner import ModelRunner, StepBatch
from headrace.sim.runner import FakeModel, FakeRunner

model = FakeModel(vocab_size=100_000, poison_token_id=66)
prompt = (1, 2, 3, 4, 5, 6)


def batch_of(
    rows: tuple[int, ...], context_len: int, table: tuple[int, ...], *, seed: int = 0
) -> StepBatch:
    return StepBatch(
        token_ids=np.array(rows, np.int32),
        row_starts=np.array([0, len(rows)], np.int32),
        context_lens=np.array([context_len], np.int32),
        block_ids=np.array(table, np.int32),
        block_starts=np.array([0, len(table)], np.int32),
        sampled=np.array([0], np.int32),
        temperature=np.array([1.0], np.float32),
        top_k=np.array([0], np.int32),
        top_p=np.array([1.0], np.float32),
        min_p=np.array([0.0], np.float32),
        seed=np.array([seed], np.uint64),
        position=np.array([0], np.int64),
    )


def make_runner() -> FakeRunner:
    return FakeRunner(model, num_blocks=8, block_size_tokens=4)


def token(runner: FakeRunner, batch: StepBatch) -> int:
    return int(runner.execute(batch).token_ids[0])


def expected(seed: int = 0) -> int:
    return model.next_token(prompt, SamplingParams(seed=seed), 0)


def test_a_whole_prompt_and_its_chunks_give_the_models_token() -> None:
    assert token(make_runner(), batch_of(prompt, 6, (3, 5))) == expected()
    runner = make_runner()
    runner.execute(batch_of(prompt[:3], 3, (3,)))
    assert token(runner, batch_of(prompt[3:], 6, (3, 5))) == expected()


def test_a_wrong_block_in_the_table_changes_the_token() -> None:
    runner = make_runner()
    runner.execute(batch_of(prompt[:5], 5, (3, 5)))
    assert token(runner, batch_of(prompt[5:], 6, (4, 5))) != expected()


def test_overwritten_content_changes_the_token() -> None:
    runner = make_runner()
    runner.execute(batch_of(prompt[:5], 5, (3, 5)))
    runner.execute(batch_of((9,), 1, (3,)))
    assert token(runner, batch_of(prompt[5:], 6, (3, 5))) != expected()


def test_a_skipped_row_changes_the_token() -> None:
    runner = make_runner()
    runner.execute(batch_of(prompt[:4], 4, (3, 5)))
    assert token(runner, batch_of(prompt[5:], 6, (3, 5))) != expected()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", np.array([1], np.uint64)),
        ("position", np.array([1], np.int64)),
        ("top_k", np.array([1], np.int32)),
        ("top_p", np.array([0.5], np.float32)),
        ("min_p", np.array([0.5], np.float32)),
        ("temperature", np.array([0.5], np.float32)),
    ],
)
def test_another_requests_parameters_change_the_token(field: str, value: Any) -> None:
    batch = replace(batch_of(prompt, 6, (3, 5)), **{field: value})
    assert token(make_runner(), batch) != expected()


def test_poison_in_the_history_marks_the_row() -> None:
    assert token(make_runner(), batch_of((1, 66, 2), 3, (0,))) == -1
    assert model.generate((1, 66), SamplingParams(), 50) == ([], FinishReason.ERROR)


def test_copied_and_exported_blocks_carry_their_content() -> None:
    runner = make_runner()
    runner.execute(batch_of(prompt[:5], 5, (3, 5)))
    runner.copy_blocks([(3, 0)])
    runner.import_blocks([1], runner.export_blocks([5]))
    assert token(runner, batch_of(prompt[5:], 6, (0, 1))) == expected()


def test_blocks_of_another_size_are_refused() -> None:
    runner = make_runner()
    with pytest.raises(ValueError, match="reshape"):
        runner.import_blocks([1, 2], runner.export_blocks([5]))


def test_batches_that_break_the_protocol_are_caught() -> None:
    runner = make_runner()
    with pytest.raises(AssertionError, match="row without a block"):
        runner.execute(batch_of(prompt, 6, (3,)))
    with pytest.raises(AssertionError):
        runner.execute(batch_of(prompt, 6, (3, 8)))
    with pytest.raises(AssertionError):
        runner.execute(batch_of((100_000,), 1, (3,)))
    shared = replace(
        batch_of(prompt[:2], 1, (3,)),
        row_starts=np.array([0, 1, 2], np.int32),
        context_lens=np.array([1, 1], np.int32),
        block_ids=np.array([3, 3], np.int32),
        block_starts=np.array([0, 1, 2], np.int32),
    )
    with pytest.raises(AssertionError, match="shared block"):
        runner.execute(shared)


def test_a_closed_runner_refuses_and_closes_again() -> None:
    runner: ModelRunner = make_runner()
    runner.close()
    runner.close()
    with pytest.raises(AssertionError):
        runner.execute(batch_of(prompt, 6, (3, 5)))
