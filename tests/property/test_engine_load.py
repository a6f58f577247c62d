"""The engine under ten times the load it can hold, under random aborts, and among others.

Tokens are compared with the model of each request alone; every pool is empty at the end.
"""

import random
from collections.abc import Callable

import pytest

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, FinishReason, SamplingParams
from headrace.engine.runner import StepBatch
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence
from headrace.sim.clock import ManualClock
from headrace.sim.numpy_runner import NumpyRunner
from headrace.sim.runner import FakeModel, FakeRunner
from headrace.sim.tiny_model import tiny_spec, tiny_tensors

model = FakeModel(500)
Key = tuple[str, int]


class Guess:
    """Proposes each choice's own output, with every third token wrong."""

    def __init__(self, outputs: dict[Key, list[int]]) -> None:
        self._outputs = outputs

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        first = sequence.completion_count
        tokens = self._outputs[sequence.request_id, sequence.index][first : first + count]
        return [token if place % 3 else 0 for place, token in enumerate(tokens, start=first)]


def request_of(rng: random.Random, index: int) -> EngineRequest:
    shared = tuple(range(rng.choice([0, 8, 12])))
    own = tuple(rng.randrange(500) for _ in range(rng.randint(1, 20)))
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.9]), seed=rng.getrandbits(64), max_tokens=rng.randint(1, 24)
    )
    return EngineRequest(
        f"r{index}",
        shared + own,
        sampling,
        priority=rng.randint(0, 2),
        cache_salt=rng.choice(["", "tenant"]),
        choice_count=rng.choice([1, 1, 1, 3]),
    )


def expected_of(request: EngineRequest) -> dict[Key, list[int]]:
    limit, base = 64, request.sampling
    return {
        (request.request_id, index): model.generate(
            request.prompt_token_ids,
            SamplingParams(
                temperature=base.temperature, seed=base.seed + index, max_tokens=base.max_tokens
            ),
            limit,
        )[0]
        for index in range(request.choice_count)
    }


def engine_of(
    expected: dict[Key, list[int]],
    num_blocks: int,
    during_step: Callable[[StepBatch], None] | None = None,
) -> tuple[EngineCore, FakeRunner]:
    runner = FakeRunner(
        model,
        num_blocks=num_blocks,
        max_model_len=64,
        rows_max=16,
        sequences_max=12,
        during_step=during_step,
    )
    config = SchedulerConfig(
        b"k" * 32,
        sequences_max=8,
        waiting_max=4096,
        draft_tokens_max=3,
        host_blocks_max=6,
        public_prompts=(tuple(range(8)),),
    )
    return EngineCore(runner, config, ManualClock(), Guess(expected)), runner


@pytest.mark.parametrize("seed", range(8))
def test_ten_times_overload_on_a_tiny_pool_gets_everything_done_with_bounded_waste(
    seed: int,
) -> None:
    rng = random.Random(seed)
    requests = [request_of(rng, index) for index in range(80)]
    expected = {key: tokens for each in requests for key, tokens in expected_of(each).items()}
    core, runner = engine_of(expected, num_blocks=18)  # of the 180 and more that they want at once
    for request in requests:
        core.submit(request)
    received: dict[Key, list[int]] = {key: [] for key in expected}
    steps_max = sum(len(r.prompt_token_ids) + r.sampling.max_tokens * 3 for r in requests) * 2
    for _ in range(steps_max):
        if not core.has_work():
            break
        for output in core.step():
            received[output.request_id, output.index] += output.token_ids
        core.check_invariants()
    assert received == expected
    stats = core.stats()
    assert stats.kv_blocks_used == 0
    assert stats.preemptions_total > 0
    assert stats.recomputed_tokens_total < runner.rows / 2, "more was thrown away than kept"


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_aborts_in_every_state_leave_nothing_behind(seed: int) -> None:
    rng = random.Random(1000 + seed)
    expected: dict[Key, list[int]] = {}
    aborts_during_step: list[str] = []

    def abort_some(_: StepBatch) -> None:
        for name in aborts_during_step:
            core.abort(name)

    core, _ = engine_of(expected, num_blocks=30, during_step=abort_some)
    live: dict[str, int] = {}
    began: set[bool | float | None] = set()  # had tokens, or not; None: was never scheduled
    aborted = submitted = 0
    while aborted < 1000 or live:
        if aborted < 1000:
            for _ in range(rng.randint(0, 4)):
                request = request_of(rng, submitted)
                expected.update(expected_of(request))
                core.submit(request)
                live[request.request_id] = request.choice_count
                submitted += 1
        victims = rng.sample(sorted(live), min(len(live), rng.randint(0, 3)))
        for name in victims[::2]:
            core.abort(name)
        aborts_during_step[:] = victims[1::2]
        if not core.has_work():
            continue
        for output in core.step():
            if output.finish_reason is not None:
                if output.finish_reason is FinishReason.ABORT:
                    aborted += 1
                    began.add(output.usage.completion_tokens > 0)
                    began.add(output.queue_s)
                live[output.request_id] -= 1
                if not live[output.request_id]:
                    del live[output.request_id]
        aborts_during_step.clear()
        core.check_invariants()
    stats = core.stats()
    assert (stats.kv_blocks_used, stats.running_requests, stats.waiting_requests) == (0, 0, 0)
    assert {True, False, None} <= began, "some states were never aborted in"
    assert not core.has_work()
    assert stats.finished_total["length"] > 100


def small_core(num_blocks: int, guesses: dict[Key, list[int]] | None) -> EngineCore:
    """The real forward pass in NumPy; a small pool preempts, guesses are drafted."""
    runner = NumpyRunner(
        tiny_spec, tiny_tensors(tiny_spec), num_blocks=num_blocks, rows_max=48, sequences_max=24
    )
    config = SchedulerConfig(
        b"k" * 32,
        step_rows=24,
        sequences_max=12,
        draft_tokens_max=0 if guesses is None else 3,
        host_blocks_max=6,
    )
    return EngineCore(runner, config, ManualClock(), None if guesses is None else Guess(guesses))


def outputs_of(core: EngineCore, requests: list[EngineRequest]) -> dict[Key, list[int]]:
    for request in requests:
        core.submit(request)
    outputs: dict[Key, list[int]] = {(request.request_id, 0): [] for request in requests}
    while core.has_work():
        for output in core.step():
            outputs[output.request_id, output.index] += output.token_ids
    return outputs


def test_a_request_gives_the_same_tokens_alone_and_among_31_others_for_50_seeds() -> None:
    """With drafts, preemptions, prefix hits and chunks; a batch of 32 is shared by its seeds."""
    common = tuple(range(20, 30))
    requests = [
        EngineRequest(
            f"r{seed}",
            (*common[: seed % 11], *(seed, seed + 50)),
            SamplingParams(
                temperature=0.7,
                top_p=0.95,
                typical_p=(1.0, 0.8)[seed % 2],
                xtc_threshold=0.02,
                xtc_probability=(0.0, 0.5)[seed // 2 % 2],
                seed=seed,
                max_tokens=10,
            ),
        )
        for seed in range(50)
    ]
    alone: dict[Key, list[int]] = {}
    for request in requests:
        alone |= outputs_of(small_core(16, None), [request])
    preemptions = 0
    for first in (0, 18):
        batch = requests[first : first + 32]
        core = small_core(26, alone)
        together = outputs_of(core, batch)
        for request in batch:
            key = (request.request_id, 0)
            assert together[key] == alone[key], request.request_id
        stats = core.stats()
        preemptions += stats.preemptions_total
        assert sum(stats.accepted_by_position) > 0
        assert stats.cached_tokens_total > 0
    assert preemptions > 0
