"""A model that was just loaded reads a few words: how many, and what is said of noise."""

from pathlib import Path

import pytest

from headrace.base.errors import ModelFileError
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.load_probe import check_tokens, is_noise, probe, probe_tokens_max, short_tokens
from headrace.engine.runner import StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.scored_text import perplexity
from headrace.sim.clock import ManualClock
from headrace.sim.model_on_disk import vocab_size, write_model_file
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

row_s = 0.01
text = [3 + (index * 37) % 250 for index in range(100)]


class SlowRunner(CpuRunner):
    """Takes a time for each row, by the test's clock."""

    clock: ManualClock
    rows = 0

    def execute(self, batch: StepBatch) -> StepResult:
        self.rows += len(batch.token_ids)
        self.clock.advance(row_s * len(batch.token_ids))
        return super().execute(batch)


def open_runner(path: Path, clock: ManualClock) -> SlowRunner:
    with open_gguf(path) as file:
        spec = read_architecture(file)
        runner = SlowRunner(file, spec, kv_tokens=512, rows_max=128, sequences_max=128, threads=1)
    runner.clock = clock
    return runner


@pytest.fixture
def runner(tmp_path: Path) -> SlowRunner:
    return open_runner(write_model_file(tmp_path / "m.gguf"), ManualClock())


def core_of(runner: SlowRunner) -> EngineCore:
    config = SchedulerConfig(prefix_cache_key=b"k" * 32, sequences_max=1)
    return EngineCore(runner, config, runner.clock)


def test_the_probe_is_the_models_perplexity(runner: SlowRunner) -> None:
    found = probe(core_of(runner), runner.clock, text, budget_s=10)
    assert found.token_count == probe_tokens_max
    assert found.perplexity == pytest.approx(perplexity(runner, text[:probe_tokens_max]), rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "count"),
    [(1000, probe_tokens_max), (20.5, 20), (8.5, short_tokens), (0, short_tokens)],
)
def test_a_slow_model_reads_as_much_as_its_budget_allows(
    runner: SlowRunner, rows: float, count: int
) -> None:
    found = probe(core_of(runner), runner.clock, text, budget_s=rows * row_s)
    assert found.token_count == count
    assert runner.rows == short_tokens + (count if count > short_tokens else 0)


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf", nan_in="blk.0.ffn_down.weight")
    runner = open_runner(path, ManualClock())
    with pytest.raises(ModelFileError, match="not finite"):
        probe(core_of(runner), runner.clock, text, budget_s=1)


def test_guessing_is_no_noise_and_being_sure_of_wrong_tokens_is(tmp_path: Path) -> None:
    for confidence, noise in ((0.01, False), (1.0, True)):
        path = write_model_file(tmp_path / "m.gguf", confidence=confidence)
        runner = open_runner(path, ManualClock())
        found = probe(core_of(runner), runner.clock, text, budget_s=10)
        assert is_noise(found.perplexity, vocab_size) is noise
    assert is_noise(float("nan"), vocab_size)


def test_tokens_that_the_model_lacks_belong_to_another() -> None:
    check_tokens([0, 319], 320)
    check_tokens([], 320)
    with pytest.raises(ModelFileError, match="makes token 320 of a plain text"):
        check_tokens([5, 320, 7], 320)
