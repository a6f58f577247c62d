"""What every model runner promises, whatever computes it.

A runner joins by a line in `runners`: a factory of one with 16 blocks and at least 32 rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import ModelRunner, StepBatch
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.clock import ManualClock
from headrace.sim.numpy_runner import NumpyRunner
from headrace.sim.runner import FakeModel, FakeRunner
from headrace.sim.tiny_model import tiny_spec, tiny_tensors


def fake_runner() -> ModelRunner:
    return FakeRunner(FakeModel(300), num_blocks=16)


def numpy_runner() -> ModelRunner:
    spec = tiny_spec
    return NumpyRunner(spec, tiny_tensors(spec), num_blocks=16)


runners = {"fake": fake_runner, "numpy": numpy_runner}
prompt = tuple(range(20, 43))
Runner = Callable[[], ModelRunner]


@pytest.fixture(params=sorted(runners))
def make_runner(request: pytest.FixtureRequest) -> Runner:
    return runners[request.param]


@dataclass(frozen=True)
class Part:
    """One sequence's rows in a step: the tokens after `first`, and its block table."""

    tokens: Sequence[int]
    table: Sequence[int]
    first: int = 0
    seed: int = 5


def batch_of(*parts: Part, sampled: Sequence[int] | None = None) -> StepBatch:
    sampled = list(range(len(parts))) if sampled is None else sampled
    count = len(sampled)
    return StepBatch(
        token_ids=np.concatenate([np.array(part.tokens, np.int32) for part in parts]),
        row_starts=np.cumsum([0, *(len(part.tokens) for part in parts)], dtype=np.int32),
        context_lens=np.array([part.first + len(part.tokens) for part in parts], np.int32),
        block_ids=np.concatenate([np.array(part.table, np.int32) for part in parts]),
        block_starts=np.cumsum([0, *(len(part.table) for part in parts)], dtype=np.int32),
        sampled=np.array(sampled, np.int32),
        temperature=np.full(count, 0.8, np.float32),
        top_k=np.full(count, 40, np.int32),
        top_p=np.full(count, 0.95, np.float32),
        min_p=np.full(count, 0.01, np.float32),
        seed=np.array([parts[index].seed for index in sampled], np.uint64),
        position=np.zeros(count, np.int64),
    )


def blocks(runner: ModelRunner, first: int) -> list[int]:
    """A table for the prompt, in descending order so that it is no identity."""
    count = -(-len(prompt) // runner.info.block_size_tokens)
    return list(range(first + count - 1, first - 1, -1))


def tokens(runner: ModelRunner, batch: StepBatch) -> list[int]:
    return [int(token) for token in runner.execute(batch).token_ids]


def alone(make_runner: Runner, seed: int = 5) -> int:
    runner = make_runner()
    return tokens(runner, batch_of(Part(prompt, blocks(runner, 0), seed=seed)))[0]


@pytest.mark.parametrize("cut", [1, 4, 7, 22])
def test_a_prompt_in_chunks_gives_the_token_of_the_whole(make_runner: Runner, cut: int) -> None:
    runner = make_runner()
    table = blocks(runner, 3)
    runner.execute(batch_of(Part(prompt[:cut], table), sampled=[]))
    batch = batch_of(Part(prompt[cut:], table, first=cut))
    assert tokens(runner, batch) == [alone(make_runner)]


def test_the_rest_of_a_batch_does_not_change_a_token(make_runner: Runner) -> None:
    runner = make_runner()
    other_table = [15, 14]
    runner.execute(batch_of(Part((9, 8, 7), other_table), sampled=[]))
    batch = batch_of(
        Part((6,), other_table, first=3), Part(prompt, blocks(runner, 0), seed=6), sampled=[0, 1]
    )
    assert tokens(runner, batch)[1] == alone(make_runner, seed=6)


def test_only_the_asked_sequences_are_sampled(make_runner: Runner) -> None:
    runner = make_runner()
    batch = batch_of(Part((1, 2), [14]), Part(prompt, blocks(runner, 0)), sampled=[1])
    result = runner.execute(batch)
    assert result.token_ids.tolist() == [alone(make_runner)]
    assert result.logprobs.shape == (1,)


def test_blocks_may_be_shared_by_their_readers(make_runner: Runner) -> None:
    runner = make_runner()
    table = blocks(runner, 0)
    runner.execute(batch_of(Part(prompt[:20], table), sampled=[]))
    shared = table[: 20 // runner.info.block_size_tokens]
    batch = batch_of(
        Part(prompt[20:], [*shared, 14], first=20), Part(prompt[20:], [*shared, 15], first=20)
    )
    assert tokens(runner, batch) == [alone(make_runner)] * 2


def test_copied_exported_and_imported_blocks_hold_the_same_context(make_runner: Runner) -> None:
    runner = make_runner()
    table = blocks(runner, 0)
    runner.execute(batch_of(Part(prompt[:-1], table), sampled=[]))
    copied = list(range(8, 8 + len(table)))
    runner.copy_blocks(list(zip(table[:2], copied[:2], strict=True)))
    runner.import_blocks(copied[2:], runner.export_blocks(table[2:]))
    batch = batch_of(Part(prompt[-1:], copied, first=len(prompt) - 1))
    assert tokens(runner, batch) == [alone(make_runner)]


def test_bytes_of_another_size_are_refused(make_runner: Runner) -> None:
    runner = make_runner()
    with pytest.raises(ValueError, match=r"."):
        runner.import_blocks([1, 2], runner.export_blocks([1]))


def test_closing_twice_is_closing_once(make_runner: Runner) -> None:
    runner = make_runner()
    runner.close()
    runner.close()


def test_an_engine_gives_each_request_the_tokens_it_gets_alone(make_runner: Runner) -> None:
    """Chunks, decodes, prefix hits and preemptions, all at once, on a pool that is too small."""

    def answers(requests: list[EngineRequest]) -> dict[str, list[int]]:
        core = EngineCore(make_runner(), SchedulerConfig(b"k" * 32, step_rows=9), ManualClock())
        for request in requests:
            core.submit(request)
        received: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for _ in range(1000):
            if not core.has_work():
                break
            for output in core.step():
                received[output.request_id] += output.token_ids
            core.check_invariants()
        return received

    requests = [
        EngineRequest(
            f"r{index}",
            (*prompt[: 8 + index % 3], index),
            SamplingParams(temperature=0.9 * (index % 2), seed=index, max_tokens=14),
        )
        for index in range(8)
    ]
    together = answers(requests)
    for request in requests:
        assert together[request.request_id] == answers([request])[request.request_id]
        assert len(together[request.request_id]) == 14
