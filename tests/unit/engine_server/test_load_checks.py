"""A load is probed once for each model, warned of or refused; one that passed is remembered."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ModelFileError
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.load_checks import probe_load
from headrace.engine_server.messages import EngineConfig, LoadProbe
from headrace.sim.clock import SteppingClock
from headrace.sim.model_on_disk import write_model_file
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf


class CountingRunner(CpuRunner):
    """Counts its steps."""

    steps = 0

    def execute(self, batch: StepBatch) -> StepResult:
        self.steps += 1
        return super().execute(batch)


class Load:
    """A model on the disk that may be loaded again."""

    def __init__(
        self, tmp_path: Path, config: EngineConfig, confidence: float, context_length: int = 512
    ) -> None:
        self.path = write_model_file(tmp_path / "m.gguf", confidence=confidence)
        self.config = msgspec.structs.replace(config, model_path=str(self.path))
        with open_gguf(self.path) as file:
            self.runner = CountingRunner(
                file,
                replace(read_architecture(file), context_length=context_length),
                kv_tokens=512,
                rows_max=128,
                sequences_max=128,
                threads=1,
            )

    def probe(self, wanted: LoadProbe | None) -> list[str]:
        config = msgspec.structs.replace(self.config, load_probe=wanted)
        clock = SteppingClock()
        core = EngineCore(self.runner, SchedulerConfig(prefix_cache_key=b"k" * 32), clock)
        return probe_load(config, core, self.runner.info, clock, load_s=1.0)


@pytest.fixture
def sound(tmp_path: Path, engine_config: EngineConfig) -> Iterator[Load]:
    load = Load(tmp_path, engine_config, confidence=0.01)
    yield load
    load.runner.close()


@pytest.fixture
def noise(tmp_path: Path, engine_config: EngineConfig) -> Iterator[Load]:
    load = Load(tmp_path, engine_config, confidence=1.0)
    yield load
    load.runner.close()


def wanted(cache_dir: Path, *, refuses_noise: bool = False, sha256: str = "ab" * 32) -> LoadProbe:
    return LoadProbe(sha256, str(cache_dir), refuses_noise)


def test_a_model_that_passed_is_not_probed_again(tmp_path: Path, sound: Load) -> None:
    assert sound.probe(wanted(tmp_path / "cache")) == []
    steps = sound.runner.steps
    assert steps > 0
    assert sound.probe(wanted(tmp_path / "cache", refuses_noise=True)) == []
    assert sound.runner.steps == steps
    sound.probe(wanted(tmp_path / "cache", sha256="cd" * 32))
    assert sound.runner.steps > steps


def test_noise_is_warned_of_each_time(tmp_path: Path, noise: Load) -> None:
    for _ in range(2):
        [remark] = noise.probe(wanted(tmp_path / "cache"))
        assert remark.startswith("warning: The model is further from a plain text than guessing")


def test_noise_is_refused_where_that_is_wanted(tmp_path: Path, noise: Load) -> None:
    with pytest.raises(ModelFileError, match="--load-checks warn serves it all the same"):
        noise.probe(wanted(tmp_path / "cache", refuses_noise=True))


def test_nothing_is_read_where_nothing_is_to_be_checked(noise: Load) -> None:
    assert noise.probe(None) == []
    assert noise.runner.steps == 0


def test_a_cache_that_takes_nothing_does_not_keep_a_model_from_serving(
    tmp_path: Path, sound: Load
) -> None:
    (tmp_path / "cache").write_text("not a directory")
    assert sound.probe(wanted(tmp_path / "cache")) == []


@pytest.mark.parametrize("context_length", [2, 8, 9, 16])
def test_a_short_context_takes_a_short_text(
    tmp_path: Path, engine_config: EngineConfig, context_length: int
) -> None:
    load = Load(tmp_path, engine_config, 1.0, context_length)
    remarks = load.probe(wanted(tmp_path / "cache"))
    assert len(remarks) == (context_length > 8)
    load.runner.close()
