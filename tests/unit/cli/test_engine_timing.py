"""Timing steps of a runner, and the work that a step can't do without."""

import itertools

import numpy as np
import pytest

from headrace.cli.engine_timing import StepTimer
from headrace.cli.engine_work import model_work
from headrace.engine.runner import StepBatch
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner
from headrace.weights.architecture import ArchitectureSpec, RopeStyle
from headrace.weights.tensor import Tensor, TensorType


def timed_runner(clock: ManualClock, **sizes: int) -> FakeRunner:
    """A runner whose steps take 1 s and 0.1 s a row; it asserts that each batch makes sense."""

    def take_time(batch: StepBatch) -> None:
        clock.advance(1.0 + 0.1 * len(batch.token_ids))

    return FakeRunner(FakeModel(), during_step=take_time, **sizes)


def test_prefill_counts_every_chunk() -> None:
    clock = ManualClock()
    runner = timed_runner(clock, num_blocks=32, block_size_tokens=4, rows_max=16)
    timing = StepTimer(runner, clock).prefill(40, repeats=3)
    assert timing.token_count == 40
    assert timing.seconds == pytest.approx(3 * 1.0 + 40 * 0.1)
    assert runner.steps == 4 * 3


def test_decode_times_one_row_a_sequence() -> None:
    clock = ManualClock()
    runner = timed_runner(clock, num_blocks=32, block_size_tokens=4, rows_max=16, sequences_max=4)
    timing = StepTimer(runner, clock).decode(4, 10, steps=8)
    assert timing.token_count == 4
    assert timing.seconds == pytest.approx(1.4)
    assert timing.tokens_per_s == pytest.approx(4 / 1.4)


def test_sequences_never_share_a_block() -> None:
    clock = ManualClock()
    seen: list[set[int]] = []

    def note_blocks(batch: StepBatch) -> None:
        starts = batch.block_starts.tolist()
        tables = [set(batch.block_ids[a:b].tolist()) for a, b in itertools.pairwise(starts)]
        seen.append(set().union(*tables))
        assert len(seen[-1]) == sum(len(table) for table in tables)
        clock.advance(1.0)

    runner = FakeRunner(
        FakeModel(), during_step=note_blocks, num_blocks=32, block_size_tokens=4, sequences_max=4
    )
    StepTimer(runner, clock).decode(4, 10, steps=3)
    assert max(max(blocks) for blocks in seen) < 32


def tensor(name: str, *shape: int) -> Tensor:
    byte_count = int(np.prod(shape)) // 32 * 20
    return Tensor(name, TensorType.Q4_1, shape, np.zeros(byte_count, np.uint8))


def test_work_counts_each_matrix_once() -> None:
    spec = ArchitectureSpec(
        family="llama",
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        vocab_size=320,
        context_length=128,
        norm_epsilon=1e-5,
        rope_style=RopeStyle.ADJACENT,
        rope_dimensions=16,
        rope_theta=10_000.0,
        rope_scale=1.0,
        tied_output=True,
    )
    tensors = [
        tensor("token_embd.weight", 320, 64),
        tensor("blk.0.attn_q.weight", 64, 64),
        tensor("blk.1.attn_q.weight", 64, 64),
        Tensor("blk.0.attn_norm.weight", TensorType.F32, (64,), np.zeros(256, np.uint8)),
    ]
    work = model_work(spec, {each.name: each for each in tensors}, kv_bytes_per_token=256)
    assert work.layer_weights == 2 * 64 * 64
    assert work.output_weights == 320 * 64
    assert work.matrix_bytes == (2 * 64 * 64 + 320 * 64) // 32 * 20
    assert work.operations(10, 1) == 2 * (10 * 2 * 64 * 64 + 320 * 64)
    assert work.step_bytes(3, 100) == work.matrix_bytes + 300 * 256
