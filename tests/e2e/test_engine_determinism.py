"""The demo model: a request's tokens do not depend on who else runs, on drafts or on preemption."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.clock import SystemClock
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.request import EngineRequest, EngineStats, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.sources import resolve

pytestmark = pytest.mark.e2e
kv_tokens = 512  # of about 1,300 that 32 requests want
text = "one two three four one two three four one two three four one two three"


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[CpuRunner, Tokenizer]]:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace"
    cache = Path(os.environ.get("HEADRACE_CACHE_DIR", default))
    path = resolve("smollm2-135m-instruct", cache, SilentProgress()).path
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
        runner = CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=kv_tokens,
            rows_max=64,
            sequences_max=64,
            threads=1,
        )
    with runner:
        yield runner, tokenizer


def outputs_of(
    runner: CpuRunner, requests: list[EngineRequest], draft_tokens_max: int
) -> tuple[dict[str, list[int]], EngineStats]:
    config = SchedulerConfig(
        b"k" * 32,
        step_rows=64,
        sequences_max=32,
        draft_tokens_max=draft_tokens_max,
        host_blocks_max=16,
    )
    core = EngineCore(runner, config, SystemClock())
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    arriving = sorted(requests, key=lambda request: -request.priority)  # the higher class later
    while arriving or core.has_work():
        for request in arriving[:4]:
            core.submit(request)
        del arriving[:4]
        for output in core.step():
            outputs[output.request_id] += output.token_ids
    return outputs, core.stats()


def test_a_request_gives_the_same_tokens_alone_and_among_31_others(
    model: tuple[CpuRunner, Tokenizer],
) -> None:
    runner, tokenizer = model
    token_ids = tokenizer.encode(text)
    requests = [
        EngineRequest(
            f"r{seed}",
            (*token_ids[: len(token_ids) - seed % 5], *token_ids[: 1 + seed % 3]),
            SamplingParams(
                temperature=0.7 * (seed % 2),
                typical_p=(1.0, 0.9)[seed // 2 % 2],
                xtc_probability=(0.0, 0.5)[seed // 4 % 2],
                seed=seed,
                max_tokens=20,
            ),
            priority=seed // 8 % 2,
        )
        for seed in range(32)
    ]
    together, stats = outputs_of(runner, requests, draft_tokens_max=4)
    assert stats.preemptions_total > 0
    assert stats.saved_tokens_total > 0
    assert stats.cached_tokens_total > 0
    for request in requests[::4]:
        alone, _ = outputs_of(runner, [request], draft_tokens_max=0)
        assert together[request.request_id] == alone[request.request_id]
    drafted, drafted_stats = outputs_of(runner, requests[:1], draft_tokens_max=4)
    assert sum(drafted_stats.accepted_by_position) > 0
    assert drafted["r0"] == together["r0"]
