"""Preempted requests whose KV waits in host memory: the same tokens, nothing computed again."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner

Make = Callable[..., Any]
key = b"k" * 32


def crowd(make_engine: Make, **fields: Any) -> Any:
    """Requests that preempt each other in a pool of 10 blocks of 4 tokens."""
    engine = make_engine(num_blocks=10, max_model_len=40, running_max=4, caching=False, **fields)
    for index in range(4):
        engine.submit(f"r{index}", 6 + index, max_tokens=20)
    engine.run()
    return engine


def test_what_was_copied_is_not_computed_again(make_engine: Make) -> None:
    engine = crowd(make_engine, host_blocks_max=40)
    for index in range(4):
        assert engine.tokens[f"r{index}"] == engine.expected(f"r{index}")
    stats = engine.core.stats()
    assert stats.preemptions_total > 0
    assert stats.recomputed_tokens_total == 0
    assert stats.saved_tokens_total >= stats.restored_tokens_total > 0
    assert stats.host_blocks == 0


def test_without_host_memory_it_is_computed_again(make_engine: Make) -> None:
    stats = crowd(make_engine).core.stats()
    assert stats.recomputed_tokens_total > 0
    assert stats.saved_tokens_total == 0


def test_host_memory_is_bounded_and_the_rest_is_computed_again(make_engine: Make) -> None:
    engine = crowd(make_engine, host_blocks_max=3)
    for index in range(4):
        assert engine.tokens[f"r{index}"] == engine.expected(f"r{index}")
    assert engine.core.stats().recomputed_tokens_total > 0


def test_an_aborted_request_leaves_nothing_in_host_memory(make_engine: Make) -> None:
    engine = make_engine(
        num_blocks=6, max_model_len=24, running_max=4, caching=False, host_blocks_max=40
    )
    engine.submit("low", 12, max_tokens=8, priority=1)
    engine.step()
    engine.submit("high", 18, max_tokens=4)
    engine.step()
    assert engine.core.stats().host_blocks == 3
    engine.core.abort("low")
    engine.step()
    assert engine.core.stats().host_blocks == 0
    engine.run()
    assert engine.tokens["high"] == engine.expected("high")


class SlowCopies(FakeRunner):
    """Takes a second for each block that it copies, and none to compute."""

    clock: ManualClock

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        self.clock.advance(len(block_ids))
        return super().export_blocks(block_ids)


def test_dear_copies_are_made_once_to_be_measured() -> None:
    clock = ManualClock()
    runner = SlowCopies(FakeModel(1000), num_blocks=10, block_size_tokens=4, max_model_len=40)
    runner.clock = clock
    config = SchedulerConfig(key, sequences_max=4, host_blocks_max=40)
    core = EngineCore(runner, config, clock)
    for index in range(4):
        prompt = tuple(range(100 * index, 100 * index + 8))
        core.submit(EngineRequest(str(index), prompt, SamplingParams(0.0, max_tokens=20)))
    saved = []
    while core.has_work():
        core.step()
        saved.append(core.stats().saved_tokens_total)
    assert core.stats().preemptions_total > 1
    assert 0 < saved[-1] < 28
    assert len(set(saved)) == 2
