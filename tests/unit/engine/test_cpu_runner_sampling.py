"""What the compiled runner samples, and what reaches which row."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.runner import LogitEdits, RareFilters, TokenMasks
from headrace.kernels.reference.sampler import sample, top_tokens
from headrace.sim.small_model import (
    Work,
    runner_of,
    small_model,
    step,
    tokens_of,
)

Floats = NDArray[np.float32]


def test_many_sampled_rows_are_taken_in_blocks(isa: str) -> None:
    model = small_model()
    work = [Work(tokens_of(3, seed=i), 0, [i]) for i in range(40)]
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step(work))
        for index in (0, 31, 32, 39):
            _, alone = runner.execute_logits(step([work[index]]))
            assert (alone[0].view(np.uint32) == logits[index].view(np.uint32)).all()
    assert (result.token_ids == logits.argmax(axis=1)).all()


def test_sampling_parameters_reach_their_row() -> None:
    model = small_model()
    work = [Work(tokens_of(4, seed=i), 0, [i]) for i in range(3)]
    chosen: dict[str, list[Any]] = {
        "temperature": [0.0, 1.5, 0.7],
        "top_k": [0, 5, 0],
        "top_p": [1.0, 1.0, 0.8],
        "min_p": [0.0, 0.1, 0.0],
        "seed": [1, 2**63, 3],
        "position": [0, 9, 4],
    }
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step(work, **chosen))
    for row in range(3):
        params = {name: values[row] for name, values in chosen.items()}
        expected = sample(logits[row], **params)
        assert result.token_ids[row] == expected.token_id


def test_typical_sampling_and_xtc_reach_their_row_and_no_other() -> None:
    model = small_model()
    work = [Work(tokens_of(4, seed=i), 0, [i]) for i in range(3)]
    rare = {
        "typical_p": [1.0, 0.4, 1.0],
        "xtc_threshold": [1.0, 1.0, 0.02],
        "xtc_probability": [0.0, 0.0, 1.0],
    }
    filters = RareFilters(**{name: np.array(values, np.float32) for name, values in rare.items()})
    with runner_of(model) as runner:
        for seed in range(8):
            plain = step(work, temperature=[1.5] * 3, seed=[seed] * 3, position=[2] * 3)
            result, logits = runner.execute_logits(replace(plain, filters=filters))
            for row in range(3):
                params: dict[str, Any] = {name: values[row] for name, values in rare.items()}
                expected = sample(logits[row], temperature=1.5, seed=seed, position=2, **params)
                assert result.token_ids[row] == expected.token_id
            alone = step(work[2:], temperature=[1.5], seed=[seed], position=[2])
            only = RareFilters(*(np.array([v[2]], np.float32) for v in rare.values()))
            assert runner.execute(replace(alone, filters=only)).token_ids[0] == result.token_ids[2]


def test_edits_masks_and_top_tokens_reach_their_row_and_no_other() -> None:
    work = [Work(tokens_of(4, seed=i), 0, [i]) for i in range(3)]
    plain = step(work)
    banned = np.full(100, -np.inf, np.float32)
    banned[7] = 0
    edits = LogitEdits(
        np.array([0, 0, 100, 100], np.int32),
        np.arange(100, dtype=np.int32),
        np.ones(100, np.float32),
        banned,
    )
    masks = TokenMasks(np.array([-1, -1, 0], np.int32), np.array([[0, 1 << 9, 0, 0]], np.uint32))
    top_counts = np.array([3, 0, 1], np.int32)
    with runner_of(small_model()) as runner:
        alone, logits = runner.execute_logits(plain)
        edited = replace(plain, edits=edits, masks=masks, top_counts=top_counts)
        result, same_logits = runner.execute_logits(edited)
    assert result.token_ids.tolist() == [alone.token_ids[0], 7, 32 + 9]
    np.testing.assert_array_equal(same_logits, logits)
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    assert result.top_ids[0].tolist() == [t.token_id for t in top_tokens(logits[0], 3)]
    assert result.top_ids[2, 0] == alone.token_ids[2]
    assert result.top_logprobs[2, 0] == alone.logprobs[2]


def test_a_poisoned_model_gives_no_token() -> None:
    model = small_model()
    data = model.tensors["output_norm.weight"].data.copy()
    data.view(np.float32)[3] = np.nan
    tensors = model.tensors | {
        "output_norm.weight": replace(model.tensors["output_norm.weight"], source=data)
    }
    with runner_of(replace(model, tensors=tensors)) as runner:
        result = runner.execute(step([Work([1, 2], 0, [0])]))
    assert result.token_ids.tolist() == [-1]
    assert np.isnan(result.logprobs).all()
