"""What the compiled runner refuses: batches, tensors, shapes and settings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.engine.runner import LogitEdits, TokenMasks
from headrace.sim.small_model import Work, base_spec, runner_of, small_model, step
from headrace.weights.tensor import TensorType

Floats = NDArray[np.float32]

wide_heads = replace(base_spec, head_dim=64, rope_dimensions=64)


def test_blocks_of_another_layout_are_refused() -> None:
    model = small_model()
    with runner_of(model) as runner, runner_of(small_model(wide_heads)) as other:
        data = runner.export_blocks([0])
        with pytest.raises(ValueError, match="layout"):
            other.import_blocks([0], data)
        with pytest.raises(ValueError, match="layout"):
            runner.import_blocks([0, 1], data)
        with pytest.raises(ValueError, match="block id 128"):
            runner.export_blocks([128])
        with pytest.raises(ValueError, match="block id -1"):
            runner.copy_blocks([(0, -1)])


def edits_of(ids: list[int], factors: list[float], addends: list[float]) -> LogitEdits:
    return LogitEdits(
        np.array([0, len(ids), len(ids)], np.int32),
        np.array(ids, np.int32),
        np.array(factors, np.float32),
        np.array(addends, np.float32),
    )


good = step([Work([1, 2, 3], 0, [0]), Work([4], 20, [1, 2])])


bad_batches = {
    "token_ids": replace(good, token_ids=np.array([1, 2, 100, 4], np.int32)),
    "negative token": replace(good, token_ids=np.array([1, 2, -1, 4], np.int32)),
    "block_ids": replace(good, block_ids=np.array([0, 1, 128], np.int32)),
    "sampled": replace(good, sampled=np.array([0, 2], np.int32)),
    "row_starts": replace(good, row_starts=np.array([0, 3, 5], np.int32)),
    "empty sequence": replace(good, row_starts=np.array([0, 4, 4], np.int32)),
    "falling starts": replace(good, row_starts=np.array([0, 5, 4], np.int32)),
    "short table": replace(good, context_lens=np.array([17, 21], np.int32)),
    "rows past context": replace(good, context_lens=np.array([2, 21], np.int32)),
    "long context": replace(good, context_lens=np.array([3, 2000], np.int32)),
    "missing sequence": replace(good, context_lens=np.array([3], np.int32)),
    "temperature": replace(good, temperature=np.array([0, np.nan], np.float32)),
    "top_p": replace(good, top_p=np.array([0, 1], np.float32)),
    "samples": replace(good, seed=np.zeros(1, np.uint64)),
    "no rows": replace(good, token_ids=good.token_ids[:0]),
    "edited token": replace(good, edits=edits_of([100], [1.0], [0.0])),
    "edit factor": replace(good, edits=edits_of([1], [0.0], [0.0])),
    "edit addend": replace(good, edits=edits_of([1], [1.0], [np.nan])),
    "edit lengths": replace(good, edits=edits_of([1, 2], [1.0], [0.0])),
    "mask row": replace(good, masks=TokenMasks(good.sampled, np.zeros((1, 4), np.uint32))),
    "mask width": replace(good, masks=TokenMasks(good.sampled, np.zeros((2, 3), np.uint32))),
    "top counts": replace(good, top_counts=np.array([101, 1], np.int32)),
    "negative top count": replace(good, top_counts=np.array([-1, 1], np.int32)),
    "wrong type": replace(good, token_ids=good.token_ids.astype(np.int64)),
}


@pytest.mark.parametrize("name", list(bad_batches))
def test_a_bad_batch_is_an_error_and_nothing_else(name: str) -> None:
    with runner_of(small_model()) as runner:
        with pytest.raises((ValueError, TypeError)):
            runner.execute(bad_batches[name])
        assert runner.execute(good).token_ids.shape == (2,)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("blk.1.ffn_up.weight", {"shape": (64, 96)}),
        ("blk.0.attn_q.weight", {"type": TensorType.Q4_K}),
        ("token_embd.weight", {"source": np.zeros(8, np.uint8)}),
        ("output_norm.weight", {"shape": (32,)}),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(name: str, change: dict[str, Any]) -> None:
    model = small_model()
    tensors = model.tensors | {name: replace(model.tensors[name], **change)}
    with (
        pytest.raises(ModelFileError, match=name),
        runner_of(replace(model, tensors=tensors)),
    ):
        pass


def test_a_missing_tensor_is_refused_by_name() -> None:
    model = small_model()
    tensors = {k: v for k, v in model.tensors.items() if k != "blk.1.attn_v.weight"}
    with (
        pytest.raises(ModelFileError, match=r"blk\.1\.attn_v\.weight is missing"),
        runner_of(replace(model, tensors=tensors)),
    ):
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", 20), ("num_kv_heads", 3), ("num_layers", 0), ("rope_dimensions", 66)],
)
def test_a_shape_that_cannot_run_is_refused_by_field(field: str, value: int) -> None:
    model = small_model()
    spec = replace(base_spec, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=field), runner_of(replace(model, spec=spec)):
        pass


@pytest.mark.parametrize("settings", [{"threads": 0}, {"kv_tokens": 8}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigurationError, match=next(iter(settings))),
        runner_of(small_model(), **settings),
    ):
        pass
